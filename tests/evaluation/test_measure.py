"""Accuracy and loss equal those of a plain loop over rows, however rows are batched and shared among ranks."""

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.accuracy import Accuracy, bin_starts
from longmlm.batches.collate import MlmBatch
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row
from longmlm.evaluation.frozen import FrozenRows, View, chunks, cut, whole
from longmlm.evaluation.measure import measure
from longmlm.model.mlm import MlmObjective, MlmOutput
from longmlm.settings.masking import HeldOut
from tests.support.families import tiny_model
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World

NUM_BLOCKS = math.ceil(LONG_POSITIONS / NUM_POSITIONS)
Sums = tuple[np.ndarray, np.ndarray, np.ndarray]


class OneOfTwo(Accelerator):
    """An accelerator that claims to be one of two ranks; both reduce by a list that they share."""

    def __init__(self, index: int, summed: list[torch.Tensor]) -> None:
        super().__init__(cpu=True)
        self.index, self.summed = index, summed

    @property
    def process_index(self) -> int:
        return self.index

    @property
    def num_processes(self) -> int:
        return 2

    def reduce(self, tensor: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        self.summed.append(tensor)
        return sum(self.summed[1:], self.summed[0])


def view_of(name: str, frozen: FrozenRows) -> Callable[[MaskedRow], list[View]]:
    shorter = {"base_positions": NUM_POSITIONS, "special": frozen.special}
    return {"whole": whole, "cut": partial(cut, **shorter), "chunks": partial(chunks, **shorter)}[name]


@torch.no_grad()
def naive(folder: Path, frozen: FrozenRows, view: Callable[[MaskedRow], list[View]]) -> Sums:
    """Returns counts, hits and losses by row and block, from the full model, one view at a time."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    sums = np.zeros((3, len(frozen.row_ids), NUM_BLOCKS))
    for number, row_id in enumerate(frozen.row_ids):
        for one in view(frozen.masked(row_id)):
            logits = model(input_ids=torch.from_numpy(one.masked.row.input_ids).unsqueeze(0)).logits[0].double()
            for index, position, label in zip(one.masked.selected, one.positions, one.masked.labels, strict=True):
                log_probabilities = logits[index].log_softmax(0)
                sums[:, number, position // NUM_POSITIONS] += [
                    1,
                    float(log_probabilities.argmax() == label),
                    -float(log_probabilities[label]),
                ]
    return sums[0], sums[1], sums[2]


def same(one: Accuracy, other: Accuracy) -> bool:
    return one == other or astuple(one) == pytest.approx(astuple(other), rel=1e-6)  # equal if nothing was selected


@pytest.mark.parametrize("world", [("roberta", 1), ("bert", 0)], indirect=True, ids=["roberta", "bert"])
@pytest.mark.parametrize(("model", "name"), [("trained", "whole"), ("trained", "cut"), ("base", "chunks")])
def test_measures_are_those_of_a_loop_over_rows_with_the_full_model(
    world: World, frozen: FrozenRows, accelerator: Accelerator, model: str, name: str
) -> None:
    folder, view = getattr(world, model), view_of(name, frozen)
    counts, hits, losses = naive(folder, frozen, view)
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(folder))
    measured = measure(objective, frozen, view, NUM_POSITIONS, accelerator)
    assert len(measured.blocks) == NUM_BLOCKS
    columns = [(counts.sum(), hits.sum(), losses.sum()), *zip(counts.sum(0), hits.sum(0), losses.sum(0), strict=True)]
    for accuracy, (count, hit, loss) in zip([measured.whole, *measured.blocks], columns, strict=True):
        assert accuracy.num_selected == count
        if count:
            assert accuracy.accuracy == pytest.approx(100 * hit / count)
            assert accuracy.loss == pytest.approx(loss / count, rel=1e-4)
        else:
            assert (accuracy.accuracy, accuracy.standard_error, accuracy.loss) == (None, None, None)
            assert name == "cut"
    assert measured.whole.num_selected > 150
    assert model == "base" or 2 < measured.whole.accuracy < 50


@pytest.mark.parametrize("name", ["whole", "chunks"])
def test_accuracy_per_bin_is_that_of_the_tokens_in_it(
    world: World, frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Only tokens in the first half of each 16 positions are predicted correctly."""
    view, block = view_of(name, frozen), 2 * NUM_POSITIONS
    shown = [one for row_id in frozen.row_ids for one in view(frozen.masked(row_id))]
    shown.sort(key=lambda one: -len(one.masked.row))  # as batches are cut
    right = iter(np.concatenate([one.positions for one in shown]) % 16 < 8)
    objective = MlmObjective(tiny_model("roberta", 1))

    def predict(batch: MlmBatch) -> MlmOutput:
        hits = [bool(next(right)) for _ in batch.labels]
        return MlmOutput(torch.ones(len(hits)), torch.tensor(hits))

    monkeypatch.setattr(objective, "predict", predict)
    measured = measure(objective, frozen, view, block, accelerator)
    positions = np.concatenate([one.positions for one in shown])
    starts = bin_starts(block, LONG_POSITIONS)
    assert starts == (0, 16, 32)
    for start, end, one in zip(starts, [16, 32, LONG_POSITIONS], measured.positions, strict=True):
        in_bin = positions[(start <= positions) & (positions < end)]
        assert one.num_selected == len(in_bin) > 20
        assert one.accuracy == pytest.approx(100 * np.mean(in_bin % 16 < 8))
        assert one.standard_error > 0 or end == LONG_POSITIONS
    assert [block.num_selected for block in measured.blocks] == [
        measured.positions[0].num_selected + measured.positions[1].num_selected,
        measured.positions[2].num_selected,
    ]


@settings(deadline=None, max_examples=100)
@given(block=st.integers(2, 600), row_length=st.integers(2, 2_000))
def test_bins_of_positions_are_equal_parts_of_blocks_wide_enough_to_mean_something(block: int, row_length: int) -> None:
    starts = bin_starts(block, row_length)
    assert starts[0] == 0
    assert starts[-1] < row_length
    assert set(range(0, row_length, block)) <= set(starts)
    widths = np.diff([start for start in starts if start <= block] if row_length > block else [])
    assert len(widths) == 0 or widths.max() - widths.min() <= 1
    assert len(widths) <= 8
    assert block < 16 or len(widths) == 0 or widths.min() >= 16


@pytest.mark.parametrize("rows_per_batch", [1, 5, 1_000])
def test_measures_do_not_depend_on_the_batch(
    world: World, frozen: FrozenRows, accelerator: Accelerator, rows_per_batch: int
) -> None:
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained))
    view = view_of("chunks", frozen)
    expected = measure(objective, frozen, view, NUM_POSITIONS, accelerator)
    batched = replace(frozen, rows_per_batch=rows_per_batch)
    measured = measure(objective, batched, view, NUM_POSITIONS, accelerator)
    pairs = zip([expected.whole, *expected.blocks], [measured.whole, *measured.blocks], strict=True)
    assert all(same(one, other) for one, other in pairs)


def test_measures_do_not_depend_on_the_number_of_processes(world: World, frozen: FrozenRows) -> None:
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained))
    expected = measure(objective, frozen, whole, NUM_POSITIONS, Accelerator(cpu=True))
    summed: list[torch.Tensor] = []
    half, both = (measure(objective, frozen, whole, NUM_POSITIONS, OneOfTwo(index, summed)) for index in (0, 1))
    assert 0 < half.whole.num_selected < expected.whole.num_selected
    groups = [[one for named in found.groups.values() for one in named.values()] for found in (expected, both)]
    assert len(groups[0]) > 10
    assert [one.num_selected for one in groups[1]] == [one.num_selected for one in groups[0]]
    sides = ([found.whole, *found.blocks, *own] for found, own in zip((expected, both), groups, strict=True))
    assert all(same(one, other) for one, other in zip(*sides, strict=True) if one.num_selected)


def test_standard_error_is_that_of_drawing_rows_again(
    world: World, frozen: FrozenRows, accelerator: Accelerator
) -> None:
    counts, hits, _ = naive(world.trained, frozen, whole)
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained))
    measured = measure(objective, frozen, whole, NUM_POSITIONS, accelerator)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(counts), (4_000, len(counts)))
    for accuracy, column in zip([measured.whole, *measured.blocks[:2]], [..., 0, 1], strict=True):
        count, hit = (sums.sum(1) if column is ... else sums[:, column] for sums in (counts, hits))
        shares = 100 * hit[drawn].sum(1) / count[drawn].sum(1)
        assert accuracy.standard_error > 0.5
        assert accuracy.standard_error == pytest.approx(shares.std(), rel=0.15)


def test_error_of_a_single_row_is_not_zero_and_rows_that_agree_among_themselves_widen_it(
    frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens of a row are right or wrong together, so they are not independent draws."""
    objective = MlmObjective(tiny_model("roberta", 1))

    def of_single_tokens(accuracy: Accuracy) -> float:
        share = accuracy.accuracy / 100
        return 100 * math.sqrt(share * (1 - share) / accuracy.num_selected)

    def every_other(batch: MlmBatch) -> MlmOutput:
        return MlmOutput(torch.zeros(len(batch.labels)), torch.arange(len(batch.labels)) % 2 == 0)

    def together(batch: MlmBatch) -> MlmOutput:
        row = batch.selected // batch.input_ids.shape[1]
        return MlmOutput(torch.zeros(len(batch.labels)), row % 2 == 0)

    monkeypatch.setattr(objective, "predict", every_other)
    one = replace(frozen, settings=HeldOut(max_rows=1))
    single = measure(objective, one, whole, NUM_POSITIONS, accelerator).whole
    assert single.standard_error == pytest.approx(of_single_tokens(single)) and single.standard_error > 10
    monkeypatch.setattr(objective, "predict", together)
    agreeing = measure(objective, frozen, whole, NUM_POSITIONS, accelerator).whole
    assert agreeing.standard_error > 1.5 * of_single_tokens(agreeing)


@pytest.mark.parametrize(
    ("name", "is_right", "percent"), [("whole", True, 100.0), ("cut", False, 0.0), ("chunks", True, 100.0)]
)
def test_oracle_is_always_right(
    frozen: FrozenRows,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_right: bool,
    percent: float,
) -> None:
    objective = MlmObjective(tiny_model("roberta", 1))
    ones = torch.ones_like
    monkeypatch.setattr(
        objective, "predict", lambda batch: MlmOutput(ones(batch.labels).float(), is_right & ones(batch.labels).bool())
    )
    measured = measure(objective, frozen, view_of(name, frozen), NUM_POSITIONS, accelerator)
    for accuracy in (measured.whole, *(block for block in measured.blocks if block.num_selected)):
        assert (accuracy.accuracy, accuracy.standard_error, accuracy.loss) == (percent, 0.0, 1.0)
    views = (view for row_id in frozen.row_ids for view in view_of(name, frozen)(frozen.masked(row_id)))
    expected = sum(len(view.positions) for view in views)
    assert measured.whole.num_selected == expected > 100


@pytest.mark.parametrize("is_training", [True, False])
def test_model_is_measured_without_dropout_and_its_mode_is_restored(
    world: World, frozen: FrozenRows, accelerator: Accelerator, is_training: bool
) -> None:
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.base))
    some, view = replace(frozen, settings=HeldOut(max_rows=10)), view_of("cut", frozen)
    expected = measure(objective.eval(), some, view, NUM_POSITIONS, accelerator)
    objective.train(is_training)
    measured = measure(objective, some, view, NUM_POSITIONS, accelerator)
    assert same(measured.whole, expected.whole)
    assert objective.training is is_training
    assert objective.model.training is is_training


def test_worked_example_of_the_module(
    frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows of 8 tokens, blocks of 4: right at position 1 of row 0 and position 3 of row 1."""
    row = Row(np.arange(10, 18), np.array([1]), np.array([0]))
    rows = [MaskedRow(row, at, at) for at in (np.array([1, 6]), np.array([2, 3, 5]))]
    monkeypatch.setattr(FrozenRows, "row_ids", [0, 1])
    monkeypatch.setattr(FrozenRows, "masked", lambda _, row_id: rows[row_id])
    is_right = iter([True, False, False, True, False])
    objective = MlmObjective(tiny_model("roberta", 1))

    def predict(batch: MlmBatch) -> MlmOutput:
        return MlmOutput(torch.ones(len(batch.labels)), torch.tensor([next(is_right) for _ in batch.labels]))

    monkeypatch.setattr(objective, "predict", predict)
    measured = measure(objective, frozen, whole, 4, accelerator)
    assert astuple(measured.whole) == pytest.approx((40.0, 8.0, 1.0, 5))
    assert [block.accuracy for block in measured.blocks[:3]] == [pytest.approx(100 * 2 / 3), 0.0, None]
