"""DeepSpeed's ZeRO, real processes over gloo: it trains, saves and resumes like one process."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from longmlm.errors import TrainingError
from longmlm.model.loading import load_model
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training import checkpoint, tracking
from longmlm.training import deepspeed_backend as zero
from longmlm.training.checkpoint import folder_of
from tests.training.test_faults import ROOT, faulty, finish, start, told
from tests.training.test_processes import launch
from tests.training.test_run import assert_same_model, losses

SLOW = pytest.mark.slow
STAGES = ["zero-1.yaml", "zero-2.yaml", "zero-3.yaml"]
OFFLOADED = ["zero-2-offload.yaml", "zero-3-offload.yaml"]


def every_step_saved(settings: PretrainConfig, run: Path, **recipe) -> PretrainConfig:
    runtime = replace(settings.runtime, save_every_steps=1, checkpoints_kept=100, rows_per_micro_batch=2)
    return replace(settings, run=str(run), runtime=runtime, recipe=replace(settings.recipe, **recipe))


def trained_by(settings: PretrainConfig, yaml: str, folder: Path, *options: str) -> Path:
    done = launch(settings, yaml, folder, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(settings.run)


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder_of(run, step) / "model.safetensors")


def moments(run: Path, step: int, key: str) -> list[torch.Tensor]:
    states = torch.load(folder_of(run, step) / "optimizer.pt", weights_only=True)["state"]
    return [states[place][key] for place in range(len(states))]


def held_out(run: Path) -> list[dict]:
    return [line["held_out"]["whole"] for line in tracking.read(run) if "held_out" in line]


@pytest.fixture
def everything_shared(tmp_path) -> str:
    """A launch with a DeepSpeed file of its own, under which the smallest parameter is shared out too."""
    file, yaml = tmp_path / "deepspeed.json", tmp_path / "zero-3-of-all.yaml"
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": "auto"}
    file.write_text(json.dumps({"zero_optimization": stage}))
    launch = {"distributed_type": "DEEPSPEED", "compute_environment": "LOCAL_MACHINE", "num_machines": 1}
    launch |= {"num_processes": 2, "deepspeed_config": {"deepspeed_config_file": str(file)}}
    yaml.write_text(json.dumps(launch))  # which YAML reads
    return str(yaml)


@SLOW
def test_zero_3_of_every_parameter_gives_the_same_training(settings, train, tmp_path, everything_shared):
    settings = every_step_saved(settings, tmp_path / "one", dropout=0.0)
    one = train(settings)
    shared = trained_by(replace(settings, run=str(tmp_path / "shared")), everything_shared, tmp_path)
    resolved = json.loads((shared / "deepspeed.json").read_text())["zero_optimization"]
    assert resolved["stage3_param_persistence_threshold"] == 0
    assert resolved["reduce_bucket_size"] == zero.TUNED["reduce_bucket_size"]
    assert losses(shared) == pytest.approx(losses(one), rel=1e-6)
    for key, value in weights(one, 12).items():
        torch.testing.assert_close(weights(shared, 12)[key], value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("yaml", [*STAGES, *(pytest.param(yaml, marks=SLOW) for yaml in OFFLOADED)])
def test_the_same_global_batches_give_the_same_training(settings, train, tmp_path, yaml):
    """Micro-batches of two rows in two processes under ZeRO, against one process that takes all rows at once."""
    settings = every_step_saved(settings, tmp_path / "one", dropout=0.0)
    one = train(replace(settings, runtime=replace(settings.runtime, rows_per_micro_batch=64)))
    shared = trained_by(replace(settings, run=str(tmp_path / "shared")), yaml, tmp_path)

    gradients, ours = (moments(run, 1, "exp_avg") for run in (one, shared))  # a tenth of the first gradient
    assert len(gradients) == len(ours) > 20
    assert max(value.abs().max() for value in gradients) > 1e-4
    for left, right in zip(gradients, ours, strict=True):
        torch.testing.assert_close(right, left, rtol=1e-5, atol=1e-8)
    assert len(losses(one)) == 12
    assert losses(shared) == pytest.approx(losses(one), rel=1e-6)
    norms = [[line["gradient_norm"] for line in tracking.read(run) if "loss" in line] for run in (one, shared)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    for key, value in weights(one, 12).items():
        torch.testing.assert_close(weights(shared, 12)[key], value, rtol=0, atol=2e-6)
    held_out = [
        [line["held_out"]["whole"] for line in tracking.read(run) if "held_out" in line] for run in (one, shared)
    ]
    assert [one["loss"] for one in held_out[1]] == pytest.approx([one["loss"] for one in held_out[0]], rel=1e-6)

    resolved = json.loads((shared / "deepspeed.json").read_text())
    assert resolved["gradient_clipping"] == settings.recipe.max_gradient_norm
    assert f"zero-{resolved['zero_optimization']['stage']}" in yaml

    exported = load_model(str(folder_of(shared, 12))).model
    assert exported.lm_head.decoder.weight is exported.roberta.embeddings.word_embeddings.weight
    assert {parameter.dtype for parameter in exported.parameters()} == {torch.float32}
    ids = torch.arange(5, 37).unsqueeze(0)
    other = AutoModelForMaskedLM.from_pretrained(folder_of(one, 12))
    torch.testing.assert_close(exported.eval()(ids).logits, other.eval()(ids).logits, rtol=0, atol=1e-5)


@SLOW
@pytest.mark.parametrize("yaml", ["two-cpu-processes.yaml", *STAGES, *OFFLOADED])
def test_resumed_in_the_middle_of_an_epoch_with_dropout_bit_for_bit(settings, tmp_path, yaml):
    settings = every_step_saved(settings, tmp_path / "whole")
    assert settings.recipe.dropout is None
    whole = trained_by(settings, yaml, tmp_path)
    state, _ = checkpoint.read_state(folder_of(whole, 5))
    num_rows = json.loads((Path(settings.rows) / "manifest.json").read_text())["report"]["train"]["rows"]
    assert state.cursor % num_rows > 0
    shutil.copytree(whole, tmp_path / "resumed")
    for step in range(6, 13):
        shutil.rmtree(folder_of(tmp_path / "resumed", step))
    resumed = trained_by(replace(settings, run=str(tmp_path / "resumed")), yaml, tmp_path)
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)
    assert len(losses(whole)) == 12


@SLOW
def test_a_run_goes_on_under_any_backend_with_any_number_of_processes(settings, train, tmp_path):
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
    for place, (yaml, num_processes) in enumerate(legs):
        leg = replace(settings, recipe=replace(settings.recipe, num_steps=2 * place + 3))
        folder_after = folder_of(tmp_path / "chain", 2 * place + 3)
        run = trained_by(leg, yaml, tmp_path, "--num_processes", str(num_processes))
        shutil.rmtree(folder_after)  # its step was one of the decay, which the next leg has not
        assert (run / "checkpoints").is_dir()
    end = load_file(folder_of(run, steps) / "model.safetensors")
    for key, value in weights(whole, steps).items():
        torch.testing.assert_close(end[key], value, rtol=0, atol=1e-5)
    assert losses(run)[:steps] == pytest.approx(losses(whole)[:steps], rel=1e-5)
    tokens = [[line["tokens"] for line in tracking.read(one) if "loss" in line][:steps] for one in (run, whole)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == steps


@pytest.mark.parametrize(
    ("yaml", "fault"),
    [
        pytest.param("two-cpu-processes.yaml", "nan-gradient", marks=SLOW),
        pytest.param("zero-1.yaml", "nan-gradient", marks=SLOW),
        ("zero-2.yaml", "nan-gradient"),
        pytest.param("zero-3.yaml", "nan-gradient", marks=SLOW),
        pytest.param("zero-2.yaml", "nan", marks=SLOW),
    ],
)
def test_no_update_is_made_with_a_number_that_is_none(settings, tmp_path, yaml, fault):
    """Loss or gradient are spoilt in one of two processes: both stop, and the rows of the step are written out."""
    file = str(ROOT / "configs" / "accelerate" / yaml)
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", file, "--main_process_port", "0")
    code, said = finish(start(settings, tmp_path, launcher, *faulty(fault, 1, 6)), tmp_path)
    run = Path(settings.run)
    assert code != 0
    assert "not finite in step 7" in told(said)[0], said[-2000:]
    assert len(losses(run)) == 6
    assert checkpoint.newest_verified(run).folder == folder_of(run, 4)
    assert len(list(run.glob("non-finite-step-00000007-process-*.json"))) == 2


@pytest.fixture
def asked_for(monkeypatch):
    """A launch that asks for DeepSpeed, as Accelerate's launcher tells its processes."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def test_what_launch_and_recipe_set_differently_is_refused_by_name(asked_for, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "1.0")
    plugin = zero.plugin_of_launch(1.0)
    assert plugin is not None and plugin.deepspeed_config["gradient_clipping"] == 1.0
    with pytest.raises(TrainingError, match=r"gradient_clipping = 1\.0, the recipe means 0\.5"):
        zero.plugin_of_launch(0.5)
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "auto")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(TrainingError, match="gradient_accumulation_steps = 4, the recipe means 1"):
        zero.plugin_of_launch(0.5)


def test_an_optimizer_in_deepspeeds_own_file_is_refused(asked_for, monkeypatch, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}}))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    with pytest.raises(TrainingError, match="sets optimizer"):
        zero.plugin_of_launch(1.0)


@pytest.mark.parametrize(
    ("name", "value"), [("ZERO_STAGE", "0"), ("OFFLOAD_OPTIMIZER_DEVICE", "nvme"), ("OFFLOAD_PARAM_DEVICE", "nvme")]
)
def test_a_stage_or_offload_that_is_not_known_is_refused(asked_for, monkeypatch, name, value):
    monkeypatch.setenv(f"ACCELERATE_DEEPSPEED_{name}", value)
    with pytest.raises(TrainingError, match="take stage 1, 2 or 3, offload to cpu"):
        zero.plugin_of_launch(1.0)


def test_a_checkpoint_of_before_the_first_update_has_no_moments_to_put_back():
    zero.put_back(None, [torch.nn.Parameter(torch.zeros(2))], {})


def test_a_launch_with_deepspeed_where_it_is_not_installed_names_the_extra(asked_for, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(zero, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"pip install 'longmlm\[deepspeed\]'"):
        zero.plugin_of_launch(1.0)


def test_without_deepspeed_there_are_no_settings_of_it(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED", raising=False)
    assert zero.plugin_of_launch(1.0) is None
