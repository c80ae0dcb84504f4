"""Models for pairs: the losses of transformers, heads that are loaded, made or refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import NO_PAIR, Pairing
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.errors import ModelError
from longmlm.model.heads import pair_parameters
from longmlm.model.loading import load_for_pairs, load_model, new_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.masking import Masking
from tests.support.extras import EXTRAS, extra_weights, folder_with_heads
from tests.support.pairs import FAMILIES, ROW_LENGTH, pair_model, pair_rows
from tests.support.tiny import tiny_folder

LABELS = {"bert": "next_sentence_label", "albert": "sentence_order_label"}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_model(tmp_path_factory.mktemp(family) / "base", family)


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return load_vocabulary(str(folder))


@pytest.fixture(scope="module")
def rows(folder: Path) -> Rows:
    return open_rows(pair_rows(folder.parent, folder), "train")


def batch_of(rows: Rows, vocabulary: Vocabulary, family: str, is_packed: bool = False) -> MlmBatch:
    """Returns the pairs of twelve rows, among them rows of a single sentence."""
    pairing = Pairing(FAMILIES[family], vocabulary.special)
    pairs = [pairing.pair(rows, row_id, 3, 0) for row_id in range(60)]
    chosen = [*(pair for pair in pairs if pair.label == NO_PAIR)][:2]
    chosen += [pair for pair in pairs if pair.label != NO_PAIR][:10]
    assert len(chosen) == 12 and {pair.label for pair in chosen} == {NO_PAIR, 0, 1}
    masked = [mask_row(pair, vocabulary.maskable, Masking(), 3, 0, number) for number, pair in enumerate(chosen)]
    return collate(masked, None if is_packed else vocabulary.special.pad)


def loaded(folder: Path, is_packed: bool = False) -> MlmObjective:
    model = load_for_pairs(str(folder)).model.eval()
    if is_packed:
        use_packed_attention(model)
    return MlmObjective(model)


def test_the_loss_is_that_of_transformers_padded_and_packed(
    folder: Path, family: str, rows: Rows, vocabulary: Vocabulary
) -> None:
    batch, stock = batch_of(rows, vocabulary, family), AutoModelForPreTraining.from_pretrained(folder).eval()
    labels = torch.full_like(batch.input_ids, NO_PAIR)
    labels.view(-1)[batch.selected] = batch.labels
    of_pairs = torch.full((len(labels),), NO_PAIR)
    of_pairs[batch.pair_starts // labels.shape[1]] = batch.pair_labels
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long(), "labels": labels}
    expected = stock(**inputs, token_type_ids=batch.token_type_ids, **{LABELS[family]: of_pairs}).loss
    expected.backward()
    for is_packed in (False, True):
        objective, own = loaded(folder, is_packed), batch_of(rows, vocabulary, family, is_packed)
        sums, counts = objective(own), own.num_targets
        assert counts == batch.num_targets and counts["pair"] == 10
        loss = sums["mlm"].loss_sum / counts["mlm"] + sums["pair"].loss_sum / counts["pair"]
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
        loss.backward()
        gradients = dict(stock.named_parameters())
        for name, parameter in objective.model.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-3, atol=1e-5)
        assert all(one.grad.abs().max() > 1e-5 for one in pair_parameters(objective.model).values())


def test_a_batch_of_rows_that_are_no_pairs_gives_the_pair_head_gradients_of_zero(
    folder: Path, family: str, rows: Rows, vocabulary: Vocabulary
) -> None:
    """Every rank then takes part in averaging them."""
    whole, objective = batch_of(rows, vocabulary, family), loaded(folder)
    none = torch.zeros(0, dtype=torch.long)
    batch = replace(whole, pair_starts=none, pair_labels=none)
    sums = objective(batch)
    assert float(sums["pair"].loss_sum.detach()) == 0 and batch.num_targets["pair"] == 0
    sum(loss for loss, _ in sums.values()).backward()
    gradients = [parameter.grad for parameter in pair_parameters(objective.model).values()]
    assert len(gradients) == 4 and not any(gradient.any() for gradient in gradients)


def test_rows_without_pairs_are_read_as_by_a_masked_language_model(
    folder: Path, rows: Rows, vocabulary: Vocabulary
) -> None:
    masked = [mask_row(rows[row_id], vocabulary.maskable, Masking(), 3, 0, row_id) for row_id in range(8)]
    batch = collate(masked, vocabulary.special.pad)
    plain = MlmObjective(load_model(str(folder)).model.eval())
    assert torch.equal(loaded(folder).predict(batch).losses, plain.predict(batch).losses)
    assert loaded(folder)(batch).keys() == {"mlm"}


def test_a_missing_pair_head_is_refused_and_new_only_if_allowed(family: str, tmp_path: Path) -> None:
    """A new head leaves the MLM head as it is; with all heads there, new_head has no effect."""
    headless, whole = tiny_folder(tmp_path / "headless", family, 0), folder_with_heads(tmp_path / "whole", family)
    with pytest.raises(ModelError, match=r"no pair head: .* new_head = true under \[start\]"):
        load_for_pairs(str(headless))
    one, again, other = (load_for_pairs(str(headless), new_head=True, seed=seed) for seed in (1, 1, 2))
    assert len(one.notes) == 1 and "no pair head" in one.notes[0] and "untrained" in one.notes[0]
    stored, state = load_file(headless / WEIGHTS), one.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in stored.items())
    first, same, differs = (pair_parameters(loaded.model) for loaded in (one, again, other))
    assert first.keys() == EXTRAS[family][1].keys() and all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], differs[name]) for name in first)

    kept = load_for_pairs(str(whole))
    assert kept.notes == () and kept.carried.weights == {}
    assert all(torch.equal(kept.model.state_dict()[name], value) for name, value in extra_weights(family).items())
    with pytest.raises(ModelError, match="an MLM head and a pair head, so new_head has no effect"):
        load_for_pairs(str(whole), new_head=True)
    with pytest.raises(ModelError, match="has an MLM head, so new_head has no effect"):
        load_model(str(headless), new_head=True)
    weights = load_file(whole / WEIGHTS)
    pooler = next(name for name in weights if "pooler" in name)
    save_file({name: value for name, value in weights.items() if name != pooler}, whole / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelError, match="only a part of its pooler and pair head"):
        load_for_pairs(str(whole))
    made = load_for_pairs(str(whole), new_head=True)
    assert made.notes[0].endswith(f"{pooler} untrained")


def test_a_new_model_has_both_heads_and_is_loaded_by_stock_classes(family: str, folder: Path, tmp_path: Path) -> None:
    made = new_model(str(folder / "config.json"), str(folder), 0, pairs=True)
    assert len(pair_parameters(made.model)) == 4
    made.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [type(made.model).__name__]
    for kind in (AutoModelForPreTraining, AutoModelForMaskedLM):
        assert not kind.from_pretrained(tmp_path, output_loading_info=True)[1]["missing_keys"]


@pytest.mark.parametrize(
    ("family", "pad", "config", "reason"),
    [
        ("roberta", 1, {}, "a roberta model, which has no head for pairs; only bert and albert"),
        ("distilbert", 0, {}, "a distilbert model"),
        ("electra", 0, {}, "an? electra model"),
        ("bert", 0, {"type_vocab_size": 1}, "a single token type"),
    ],
)
def test_models_that_cannot_learn_pairs_are_refused(
    family: str, pad: int, config: dict[str, int], reason: str, tmp_path: Path
) -> None:
    base = tiny_folder(tmp_path / "base", family, pad)
    values = json.loads((base / "config.json").read_text()) | config
    (base / "config.json").write_text(json.dumps(values))
    for load in (
        lambda: load_for_pairs(str(base)),
        lambda: new_model(str(base / "config.json"), str(base), 0, pairs=True),
    ):
        with pytest.raises(ModelError, match=rf"{reason}.*remove \[recipe\.pairs\]"):
            load()


def test_tokens_of_the_second_segment_are_of_type_one(
    folder: Path, family: str, rows: Rows, vocabulary: Vocabulary
) -> None:
    batch = batch_of(rows, vocabulary, family)
    losses = loaded(folder).predict(batch).losses
    plain = loaded(folder).predict(replace(batch, token_type_ids=torch.zeros_like(batch.token_type_ids))).losses
    assert not torch.allclose(losses, plain) and batch.input_ids.shape[1] <= ROW_LENGTH
    is_separator = (batch.input_ids == vocabulary.special.sep).long()
    is_second = (is_separator.cumsum(1) - is_separator == 1) & batch.attention_mask
    assert torch.equal(batch.token_type_ids, is_second.long())
