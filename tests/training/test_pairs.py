"""Training on pairs: resumes exactly, is measured separately, saves stock models, and is refused with a remedy."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from longmlm.artifacts.provenance import read_provenance
from longmlm.batches.steps import StepBatches
from longmlm.errors import CheckpointError, DataError, ModelError
from longmlm.model.heads import pair_parameters
from longmlm.model.loading import load_trained
from longmlm.needs import check_inputs
from longmlm.settings.masking import Pairs
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.training import loop, tracker
from longmlm.training.run_folder import checkpoint_folder
from tests.support.pairs import FAMILIES, from_architecture, pair_model, pair_rows, pair_settings
from tests.support.tiny import tiny_folder
from tests.support.training import (
    assert_same_model,
    evaluation_lines,
    losses,
    train_here,
    train_until,
    training_lines,
    weights_at,
    with_recipe,
)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def ground(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for pairs, and rows."""
    folder = tmp_path_factory.mktemp(family)
    pair_rows(folder, pair_model(folder / "base", family))
    return folder


@pytest.fixture
def paired(family: str, ground: Path, tmp_path: Path) -> PretrainConfig:
    return pair_settings(tmp_path, ground / "base", ground / "rows", FAMILIES[family])


@pytest.fixture(scope="module")
def whole(family: str, ground: Path) -> Path:
    """The run that nothing disturbs."""
    return train_here(pair_settings(ground, ground / "base", ground / "rows", FAMILIES[family]))


def test_a_run_resumes_exactly_and_its_pair_head_is_trained(whole: Path, paired: PretrainConfig, ground: Path) -> None:
    resumed = train_here(train_until(paired, 6))
    assert_same_model(whole, resumed, 8)
    assert losses(resumed) == losses(whole)
    pairs = [[line.targets["pair"] for line in training_lines(run)] for run in (whole, resumed)]
    assert pairs[0] == pairs[1] and len(pairs[0]) == 8
    assert evaluation_lines(resumed) == evaluation_lines(whole)
    before, after = load_file(ground / "base" / "model.safetensors"), weights_at(whole, 8)
    names = pair_parameters(load_trained(str(checkpoint_folder(whole, 8))).model).keys()
    assert len(names) == 4 and not any(torch.equal(before[name], after[name]) for name in names)
    assert {line.targets["mlm"].loss for line in training_lines(whole)}.isdisjoint(one.loss for one in pairs[0])


def test_pairs_are_measured_apart_and_masked_tokens_as_in_a_run_without_pairs(
    whole: Path, paired: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_, last = evaluation_lines(whole)
    plain = evaluation_lines(train_here(with_recipe(paired, pairs=None)))
    assert plain[0].held_out == first.held_out, "the model as it starts"
    assert plain[-1].held_out != last.held_out and plain[0].pairs is None
    assert first.pairs.num_pairs == last.pairs.num_pairs > 15
    assert first.pairs.larger_share == last.pairs.larger_share >= 50
    assert first.pairs.loss != last.pairs.loss and 0 <= last.pairs.accuracy <= 100
    shown = tracker.figures(last)
    assert shown["held_out/pair_accuracy"] == last.pairs.accuracy and "held_out/pair_larger_share" in shown
    assert "train/pair_loss" in tracker.figures(training_lines(whole)[-1])
    capsys.readouterr()
    trained = read_provenance(checkpoint_folder(whole, 8)).trained
    assert trained.pair_accuracy == last.pairs and trained.pairs == paired.recipe.pairs.kind
    train_here(replace(paired, run=str(whole)))
    assert f"pair accuracy {last.pairs}" in capsys.readouterr().out


def test_checkpoints_are_stock_models_for_pairs(whole: Path) -> None:
    folder = checkpoint_folder(whole, 8)
    stock, info = AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert json.loads((folder / "config.json").read_text())["architectures"] == [type(stock).__name__]
    _, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]


def test_an_untrained_model_gets_both_heads(paired: PretrainConfig, ground: Path) -> None:
    run = train_here(from_architecture(with_recipe(paired, num_steps=2), ground / "base"))
    assert len(training_lines(run)) == 2
    assert not AutoModelForPreTraining.from_pretrained(checkpoint_folder(run, 2), output_loading_info=True)[1][
        "missing_keys"
    ]


def test_a_model_trained_on_pairs_goes_on_without_them_and_keeps_its_head(
    whole: Path, paired: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = replace(paired, start=Start(checkpoint=str(checkpoint_folder(whole, 8))), run=str(tmp_path / "on"))
    run = train_here(with_recipe(own, pairs=None, num_steps=2))
    assert "carried over untrained: pooler" in capsys.readouterr().out
    before, after = weights_at(whole, 8), weights_at(run, 2)
    names = pair_parameters(load_trained(str(checkpoint_folder(whole, 8))).model).keys()
    assert all(torch.equal(before[name], after[name]) for name in names) and before.keys() == after.keys()
    about = read_provenance(checkpoint_folder(run, 2))
    assert about.trained.pairs is None and about.trained_before[0].pairs == paired.recipe.pairs.kind
    both = train_here(with_recipe(replace(own, run=str(tmp_path / "both")), num_steps=2))
    assert not any(torch.equal(before[name], weights_at(both, 2)[name]) for name in names)


def test_a_resumed_run_keeps_its_pairs(paired: PretrainConfig, whole: Path) -> None:
    shutil.copytree(whole, paired.run)
    for pairs in (None, Pairs(kind="sop" if paired.recipe.pairs.kind == "nsp" else "nsp")):
        with pytest.raises(CheckpointError, match=r"recipe\.pairs\.kind was"):
            train_here(with_recipe(paired, pairs=pairs, num_steps=9))


def test_a_step_without_pairs_is_made(paired: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log has no figures of pairs, and the weights of the pair head only decay."""
    made = StepBatches.__getitem__

    def without_pairs(self, index):
        none = torch.zeros(0, dtype=torch.long)
        return tuple(replace(batch, pair_starts=none, pair_labels=none) for batch in made(self, index))

    monkeypatch.setattr(StepBatches, "__getitem__", without_pairs)
    run = train_here(with_recipe(paired, num_steps=2))
    assert [line.targets.keys() for line in training_lines(run)] == [{"mlm"}] * 2


def test_rows_without_sentences_are_refused_before_anything_is_loaded_and_by_the_run(
    paired: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Path(str(paired.start.checkpoint))
    plain = replace(paired, rows=str(pair_rows(tmp_path, tokenizer, pairs=False)))
    for refuse in (check_inputs, train_here):
        with pytest.raises(DataError, match=r"prepare rows with pairs = true .* or remove \[recipe\.pairs\]"):
            refuse(plain)
    monkeypatch.setattr(loop, "one_update", lambda *_: pytest.fail("no update should be made"))
    check_inputs(with_recipe(plain, pairs=None))
    check_inputs(paired)


def test_a_model_without_a_pair_head_is_refused_before_anything_is_loaded(
    paired: PretrainConfig, tmp_path: Path
) -> None:
    roberta = tiny_folder(tmp_path / "roberta", "roberta", 1, 32)
    for start in (
        Start(checkpoint=str(roberta)),
        Start(architecture=str(roberta / "config.json"), tokenizer=str(roberta)),
    ):
        with pytest.raises(ModelError, match="a roberta model, which has no head for pairs"):
            check_inputs(replace(paired, start=start))
