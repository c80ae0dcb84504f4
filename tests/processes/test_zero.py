"""DeepSpeed's ZeRO in real processes over gloo: it trains, saves and resumes like one process."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.data.rows import open_rows
from longmlm.model.loading import load_model
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training.deepspeed_backend import BUCKETS
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.carrying import assert_carries_all, base_model, start_from
from tests.support.extras import with_heads, with_modules
from tests.support.launching import Ended, accelerate, errors_in, run_in_turn, trained
from tests.support.training import (
    assert_same_model,
    evaluation_lines,
    losses,
    moments_at,
    state_at,
    training_lines,
    twelve_steps,
    weights_at,
    with_recipe,
    with_runtime,
)

SLOW = pytest.mark.slow
OTHERS = ("zero-1", "zero-2-offload", "zero-3-offload")


def every_step_saved(settings: PretrainConfig, run: Path, **recipe) -> PretrainConfig:
    settings = with_runtime(settings, save_every_steps=1, checkpoints_kept=100, rows_per_micro_batch=2)
    return replace(with_recipe(settings, **recipe), run=str(run))


@pytest.fixture
def everything_partitioned(tmp_path) -> str:
    """A launch with a DeepSpeed file of its own, under which the smallest parameter is partitioned too."""
    file, yaml = tmp_path / "deepspeed.json", tmp_path / "zero-3-of-all.yaml"
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": "auto"}
    file.write_text(json.dumps({"zero_optimization": stage}))
    launch = {"distributed_type": "DEEPSPEED", "compute_environment": "LOCAL_MACHINE", "num_machines": 1}
    launch |= {"num_processes": 2, "deepspeed_config": {"deepspeed_config_file": str(file)}}
    yaml.write_text(json.dumps(launch))  # which YAML reads
    return str(yaml)


@SLOW
def test_zero_3_of_every_parameter_gives_the_same_training(settings, train, tmp_path, everything_partitioned):
    settings = every_step_saved(settings, tmp_path / "one", dropout=0.0)
    one = train(settings)
    partitioned = trained(
        replace(settings, run=str(tmp_path / "partitioned")), tmp_path, accelerate(everything_partitioned)
    )
    resolved = json.loads((partitioned / "deepspeed.json").read_text())["zero_optimization"]
    assert resolved["stage3_param_persistence_threshold"] == 0
    assert resolved["reduce_bucket_size"] == BUCKETS["reduce_bucket_size"]
    assert losses(partitioned) == pytest.approx(losses(one), rel=1e-6)
    for key, value in weights_at(one, 12).items():
        torch.testing.assert_close(weights_at(partitioned, 12)[key], value, rtol=0, atol=2e-6)


@pytest.fixture(scope="module", params=["zero-3", "zero-2", *(pytest.param(name, marks=SLOW) for name in OTHERS)])
def zero(request, inputs, generated, tmp_path_factory) -> dict[str, Ended]:
    """Trainings in the two processes of one launch with DeepSpeed, each twelve steps or four."""
    folder = tmp_path_factory.mktemp(request.param)
    plain = twelve_steps(inputs, folder)
    extras = with_modules(with_heads(base_model(plain, folder / "base"), "roberta"))
    trainings = {
        "undisturbed": (plain, "none -1 0"),
        "nan": (plain, "nan 1 6"),
        "nan-gradient": (plain, "nan-gradient 1 6"),
        "still": (every_step_saved(plain, folder, dropout=0.0), "none -1 0"),
        "generated": (with_runtime(generated, rows_per_micro_batch=2), "none -1 0"),
        "carrying": (start_from(plain, extras, folder), "none -1 0"),
    }
    named = {name: (replace(one, run=str(folder / name / "run")), fault) for name, (one, fault) in trainings.items()}
    named["resumed"] = (named["nan-gradient"][0], "none -1 0")
    return run_in_turn(named, folder, accelerate(f"{request.param}.yaml"))


def test_no_update_is_made_with_a_number_that_is_not_finite_and_the_run_resumes_bit_for_bit(zero, inputs):
    """Loss or gradient is not finite in one of two processes: both stop and write out the rows of the step."""
    for fault in ("nan", "nan-gradient"):
        run = zero[fault].run
        assert zero[fault].codes == [2, 2]
        assert "not finite in step 7" in errors_in(zero[fault].output)[0]
        assert len(list(run.glob("non-finite-step-00000007-process-*.json"))) == 2
    assert len(losses(zero["nan"].run)) == 6
    assert newest_verified(zero["nan"].run).folder == checkpoint_folder(zero["nan"].run, 4)
    whole, resumed = zero["undisturbed"].succeeded(), zero["resumed"].succeeded()
    assert f"resuming after step 4, from {checkpoint_folder(resumed, 4)}" in zero["resumed"].output
    assert state_at(resumed, 8).cursor % len(open_rows(inputs / "rows", "train")) > 0  # in the middle of an epoch
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)
    assert len(losses(whole)) == 12


def test_checkpoints_of_partitioned_runs_carry_all(zero):
    for step in (2, 4):
        assert_carries_all(checkpoint_folder(zero["carrying"].succeeded(), step))


def test_generated_positions_have_the_losses_of_one_process(zero, generated):
    one = losses(Path(generated.run))
    assert len(one) == 12
    assert losses(zero["generated"].succeeded()) == pytest.approx(one, rel=1e-5)


def test_the_same_global_batches_give_the_same_training(zero, settings, train, tmp_path):
    """Micro-batches of two rows in two processes under ZeRO, against one process that takes all rows at once."""
    settings = every_step_saved(settings, tmp_path / "one", dropout=0.0)
    one, partitioned = train(with_runtime(settings, rows_per_micro_batch=64)), zero["still"].succeeded()

    gradients, ours = (moments_at(run, 1, "exp_avg") for run in (one, partitioned))  # a tenth of the first gradient
    assert len(gradients) == len(ours) > 20
    assert max(value.abs().max() for value in gradients) > 1e-4
    for left, right in zip(gradients, ours, strict=True):
        torch.testing.assert_close(right, left, rtol=1e-5, atol=1e-8)
    assert len(losses(one)) == 12
    assert losses(partitioned) == pytest.approx(losses(one), rel=1e-6)
    norms = [[line.gradient_norm for line in training_lines(run)] for run in (one, partitioned)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    for key, value in weights_at(one, 12).items():
        torch.testing.assert_close(weights_at(partitioned, 12)[key], value, rtol=0, atol=2e-6)
    held_out = [[line.held_out.whole.loss for line in evaluation_lines(run)] for run in (one, partitioned)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-6)

    resolved = json.loads((partitioned / "deepspeed.json").read_text())
    assert resolved["gradient_clipping"] == settings.recipe.max_gradient_norm
    assert zero["still"].folder.parent.name.startswith(f"zero-{resolved['zero_optimization']['stage']}")

    exported = load_model(str(checkpoint_folder(partitioned, 12))).model
    assert exported.lm_head.decoder.weight is exported.roberta.embeddings.word_embeddings.weight
    assert {parameter.dtype for parameter in exported.parameters()} == {torch.float32}
    ids = torch.arange(5, 37).unsqueeze(0)
    other = AutoModelForMaskedLM.from_pretrained(checkpoint_folder(one, 12))
    torch.testing.assert_close(exported.eval()(ids).logits, other.eval()(ids).logits, rtol=0, atol=1e-5)


@SLOW
def test_a_run_resumes_under_any_backend_with_any_number_of_processes(settings, train, tmp_path):
    """Ten launches on one run folder, two steps each, against one process that was never stopped."""
    legs = [
        ("single.yaml", 1),
        ("two-cpu-processes.yaml", 2),
        ("zero-2.yaml", 2),
        ("zero-2.yaml", 1),
        ("zero-2.yaml", 2),
        ("zero-3.yaml", 2),
        ("zero-3.yaml", 1),
        ("zero-3-offload.yaml", 2),
        ("two-cpu-processes.yaml", 4),
        ("zero-1.yaml", 2),
        ("single.yaml", 1),
    ]
    steps = 2 * len(legs)
    constant = {"schedule": "constant-then-decay", "decay_steps": 1, "warmup_steps": 1, "dropout": 0.0}
    settings = every_step_saved(settings, tmp_path / "chain", **constant, num_steps=steps + 1)
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    for index, (yaml, num_processes) in enumerate(legs):
        leg = with_recipe(settings, num_steps=2 * index + 3)
        folder_after = checkpoint_folder(tmp_path / "chain", 2 * index + 3)
        run = trained(leg, tmp_path, accelerate(yaml, "--num_processes", str(num_processes)))
        shutil.rmtree(folder_after)  # its step was one of the decay, which the next leg does not have
        assert (run / "checkpoints").is_dir()
    end = weights_at(run, steps)
    for key, value in weights_at(whole, steps).items():
        torch.testing.assert_close(end[key], value, rtol=0, atol=1e-5)
    assert losses(run)[:steps] == pytest.approx(losses(whole)[:steps], rel=1e-5)
    tokens = [[line.tokens for line in training_lines(folder)][:steps] for folder in (run, whole)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == steps
