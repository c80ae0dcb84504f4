"""What an evaluation computes: no tensor of all logits, little padding, each row masked once, ranks in lockstep."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longmlm.batches.collate import MlmBatch
from longmlm.data.row import LooseRows
from longmlm.evaluation import measure as measurement
from longmlm.evaluation.filled_masks import filled_masks
from longmlm.evaluation.frozen import FrozenRows, cut, viewer_of, whole
from longmlm.evaluation.measure import Subject, measure, tallies
from longmlm.model.mlm import MlmObjective, MlmOutput
from longmlm.model.packed_attention import ATTENTION_NAME, attention_name
from longmlm.settings.masking import HeldOut
from tests.evaluation.test_measure import OneOfTwo
from tests.support.tiny import NUM_POSITIONS, World


class Shapes(TorchDispatchMode):
    """Records the shape of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.shapes.update(tuple(one.shape) for one in tree_iter(output) if isinstance(one, torch.Tensor))
        return output


def model_of(world: World, precision: str = "no") -> MlmObjective:
    return MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained), precision)


def subjects_of(world: World, frozen: FrozenRows, objective: MlmObjective) -> Mapping[str, Subject]:
    base = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.base), objective.precision)
    views = {name: viewer_of(name, NUM_POSITIONS, frozen.special) for name in ("whole", "cut", "chunks")}
    return {
        **{f"base_{name}": Subject(base, views[name]) for name in ("cut", "chunks")},
        **{f"long_{name}": Subject(objective, views[name]) for name in ("whole", "cut")},
    }


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_no_tensor_holds_logits_of_tokens_that_are_not_selected(
    world: World, frozen: FrozenRows, accelerator: Accelerator, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest tensor with a vocabulary has a line per selected token of a batch; for examples, one line."""
    objective, most_selected = model_of(world, precision), 0
    predict = objective.predict

    def counted(batch: MlmBatch) -> MlmOutput:
        nonlocal most_selected
        most_selected = max(most_selected, len(batch.labels))
        assert len(batch.labels) < batch.num_tokens / 2
        return predict(batch)

    monkeypatch.setattr(objective, "predict", counted)
    subjects = {**subjects_of(world, frozen, objective)}
    num_words = objective.model.get_input_embeddings().num_embeddings
    parameters = {tuple(one.shape) for subject in subjects.values() for one in subject.objective.parameters()}
    parameters |= {shape[::-1] for shape in parameters}  # as the decoder multiplies them
    with Shapes() as found:
        tallies(subjects, frozen, NUM_POSITIONS, accelerator)
    logits = [shape for shape in found.shapes if num_words in shape and shape not in parameters]
    assert max(math.prod(shape) // num_words for shape in logits) == most_selected
    with Shapes() as found:
        tokenizer = AutoTokenizer.from_pretrained(world.trained)
        assert filled_masks(objective, tokenizer, frozen, 4)
    logits = [shape for shape in found.shapes if num_words in shape and shape not in parameters]
    assert {math.prod(shape) // num_words for shape in logits} == {1}


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_all_subjects_in_one_pass_measure_what_each_measures_by_itself(
    world: World, frozen: FrozenRows, accelerator: Accelerator, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is masked once, whatever the number of subjects, and also with several chunks."""
    subjects = subjects_of(world, frozen, model_of(world, precision))
    expected = {
        name: tallies({name: one}, frozen, NUM_POSITIONS, accelerator)[name].measured for name, one in subjects.items()
    }
    masked, real = [], FrozenRows.masked
    monkeypatch.setattr(FrozenRows, "masked", lambda self, row_id: masked.append(row_id) or real(self, row_id))
    found = tallies(subjects, frozen, NUM_POSITIONS, accelerator)
    assert {name: one.measured for name, one in found.items()} == expected
    assert masked == frozen.row_ids
    assert len({one.whole.loss for one in expected.values()}) == len(expected)


def padding_of(batches: list[MlmBatch]) -> float:
    return 1 - sum(batch.num_tokens for batch in batches) / sum(batch.input_ids.numel() for batch in batches)


def test_rows_of_like_length_share_a_batch(
    world: World, frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of many lengths: hardly any padding, and the counts of each row are those of rows one at a time."""
    rows = []
    for row_id in frozen.row_ids:
        row = frozen.rows[row_id]
        length = min(len(row), 5 + 7 * row_id % 31)
        rows.append(row.window(1, length - 1, frozen.special))
    loose = replace(frozen, rows=LooseRows(tuple(rows)), rows_per_batch=4)
    objective, batches = model_of(world), []
    predict = objective.predict
    monkeypatch.setattr(objective, "predict", lambda batch: batches.append(batch) or predict(batch))
    found = measure(objective, loose, whole, NUM_POSITIONS, accelerator)
    assert padding_of(batches) < 0.05
    assert all(len(batch.input_ids) == 4 for batch in batches[:-1])
    lengths = [batch.input_ids.shape[1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    monkeypatch.setattr(measurement, "BATCHES_PER_CHUNK", 1)
    batches.clear()
    unsorted = measure(objective, replace(loose, rows_per_batch=1), whole, NUM_POSITIONS, accelerator)
    assert [batch.input_ids.shape[1] for batch in batches] == [*map(len, rows)]
    assert (found.selected, found.correct) == (unsorted.selected, unsorted.correct)
    assert found.whole.loss == pytest.approx(unsorted.whole.loss, rel=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_ranks_make_equally_many_forward_passes(
    world: World, frozen: FrozenRows, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ZeRO stage 3 requires, also with an odd number of rows, of which some have no selected token."""
    monkeypatch.setattr(measurement, "BATCHES_PER_CHUNK", chunk)
    odd = replace(frozen, settings=HeldOut(max_rows=2 * (len(frozen.rows) // 2) - 1), rows_per_batch=4)
    real = FrozenRows.masked

    def with_empty_rows(self: FrozenRows, row_id: int):
        masked = real(self, row_id)
        keep = slice(0) if row_id % 6 == 0 else slice(None)  # on rank 0 only
        return replace(masked, selected=masked.selected[keep], labels=masked.labels[keep])

    monkeypatch.setattr(FrozenRows, "masked", with_empty_rows)
    for view in (whole, viewer_of("cut", NUM_POSITIONS, odd.special)):
        calls: list[list[str]] = [[], []]
        summed: list[torch.Tensor] = []
        for rank in (0, 1):
            objective = model_of(world)
            predict, own = objective.predict, calls[rank]
            monkeypatch.setattr(objective, "predict", lambda b, own=own, run=predict: own.append("forward") or run(b))
            accelerator, subject = OneOfTwo(rank, summed), {"": Subject(objective, view)}
            tallies(subject, odd, NUM_POSITIONS, accelerator, "", lambda own=own: own.append("row"))
        assert calls[0] == calls[1]
        assert calls[0].count("row") == len(odd.row_ids) // 2 + 1
        assert len(summed) == 2


@pytest.mark.parametrize(("precision", "expected"), [("no", "sdpa"), ("bf16", ATTENTION_NAME)])
def test_packed_attention_is_used_in_half_precision_and_removed_again(
    world: World, frozen: FrozenRows, accelerator: Accelerator, precision: str, expected: str
) -> None:
    objective, used = model_of(world, precision), set()

    def note() -> None:
        used.add(attention_name(objective.model))

    subject = {"": Subject(objective, lambda row: cut(row, NUM_POSITIONS, frozen.special))}
    found = tallies(subject, frozen, NUM_POSITIONS, accelerator, "", note)[""].measured
    assert used == {expected}
    assert attention_name(objective.model) == "sdpa"
    exact = measure(model_of(world), frozen, subject[""].view, NUM_POSITIONS, accelerator)
    assert found.whole.accuracy == pytest.approx(exact.whole.accuracy, abs=1.0)
    assert found.whole.loss == pytest.approx(exact.whole.loss, rel=2e-3)
