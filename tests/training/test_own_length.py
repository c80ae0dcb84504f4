"""Continued pretraining without extension: families whose positions are computed, from base model to release."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.evaluation import read_evaluation
from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.errors import DataError, ModelError, TrainingError
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.evaluate import evaluate
from longmlm.stages.extend import extend
from longmlm.stages.release import release
from longmlm.training.run_folder import best_checkpoint
from tests.support.families import NUM_POSITIONS, SPECIAL_OF_OTHERS
from tests.support.tiny import prove_in_this_process, tiny_folder, tiny_rows, with_fresh_process_state
from tests.support.training import losses, train_until, training_lines, weights_at, with_recipe

FAST = ("modernbert", "deberta-v2")  # one that loads in another process, one whose positions are relative
FAMILIES = [
    pytest.param(family, id=family[0], marks=() if family[0] in FAST else pytest.mark.slow)
    for family in SPECIAL_OF_OTHERS
]


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("own-length") / request.param[0], *request.param)


@pytest.fixture(scope="module")
def rows(base: Path) -> Path:
    return tiny_rows(base.parent / "rows", base, NUM_POSITIONS)


@pytest.fixture
def own(settings: PretrainConfig, base: Path, rows: Path) -> PretrainConfig:
    """Sixteen steps from the base model."""
    start = Start(checkpoint=str(base))
    return with_recipe(replace(settings, rows=str(rows), start=start), num_steps=16, learning_rate=3e-3)


def test_from_base_model_to_release(own, base, rows, train, monkeypatch, tmp_path) -> None:
    if base.name != "modernbert":  # whose export another process loads
        prove_in_this_process(monkeypatch)
    uninterrupted = train(replace(own, run=str(tmp_path / "uninterrupted")))
    train_until(own, 6)
    run = train(own)
    assert losses(run) == losses(uninterrupted) and len(losses(run)) == 16
    assert sum(losses(run)[-3:]) < sum(losses(run)[:3])
    assert all(0 < line.padding_percent < 50 for line in training_lines(run))  # rows differ in length
    left, right, before = weights_at(run, 16), weights_at(uninterrupted, 16), load_file(base / "model.safetensors")
    assert left.keys() == right.keys() == before.keys() and len(left) > 15
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert sum(not torch.equal(left[name], before[name]) for name in left) > 15

    models = {"base": str(base), "long_after": str(run)}
    evaluation = tmp_path / "evaluation"
    evaluate(EvaluateConfig(rows=str(rows), output=str(evaluation), run=str(run), **models))
    measured = read_evaluation(evaluation / "evaluation.json")
    assert set(measured.measured) == {"base_cut", "long_after"}
    counts = {view.whole.num_selected for view in measured.measured.values()}
    assert len(counts) == 1 and counts.pop() > 200
    page = (evaluation / "index.html").read_text(encoding="utf-8")
    assert f"{NUM_POSITIONS} tokens" in page and "long model after" not in page and "before each window" not in page

    with_fresh_process_state()
    released = tmp_path / "released"
    release(
        ReleaseConfig(
            model=str(run),
            rows=str(rows),
            output=str(released),
            evaluation=str(evaluation),
            card=ReleaseCard(title="tiny", license="apache-2.0"),
            recipe=ReleaseRecipe(allow_unrecovered=True),
        )
    )
    best = load_file(best_checkpoint(run) / "model.safetensors")
    stock, info = AutoModelForMaskedLM.from_pretrained(released, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    is_tied = stock.get_output_embeddings().weight is stock.get_input_embeddings().weight
    assert is_tied == (base.name not in ("eurobert", "deberta"))
    assert load_file(released / "model.safetensors").keys() == best.keys()
    about = read_provenance(released)
    assert (about.extension, about.started_from) == (None, ModelSource(name=base.name))
    card = (released / "README.md").read_text(encoding="utf-8")
    assert f"`{base.name}`, pretrained further with longmlm" in card
    assert f"It reads up to {NUM_POSITIONS} tokens." in card


def test_there_is_no_recovery_to_stop_at(own, train) -> None:
    with pytest.raises(TrainingError, match="stop_when_recovered is for a long model, and this was not extended"):
        train(replace(own, runtime=replace(own.runtime, stop_when_recovered=True)))


def test_rows_longer_than_the_model_reads_are_refused(own, base, train, tmp_path) -> None:
    rows = tiny_rows(tmp_path / "rows", base, NUM_POSITIONS + 1)
    with pytest.raises(DataError, match=f"the rows have {NUM_POSITIONS + 1} tokens and .* reads {NUM_POSITIONS}"):
        train(replace(own, rows=str(rows)))


def test_more_positions_are_refused_with_the_reason(base: Path, tmp_path: Path) -> None:
    recipe = ExtendRecipe(num_positions=2 * NUM_POSITIONS)
    with pytest.raises(
        ModelError, match=f"{base} is a {base.name} model, which cannot be extended: it has .* positions"
    ):
        extend(ExtendConfig(base=str(base), output=str(tmp_path / "long"), recipe=recipe))
    assert not (tmp_path / "long").exists()
