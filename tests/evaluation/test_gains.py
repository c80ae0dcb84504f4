"""What the longer context gains, by offset in the document, equals a plain count over tokens."""

import math
from collections.abc import Iterator
from dataclasses import astuple

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from longmlm.batches.collate import MlmBatch
from longmlm.data.row import Row
from longmlm.evaluation.comparison import gains_by_offset
from longmlm.evaluation.frozen import FrozenRows, viewer_of
from longmlm.evaluation.measure import Subject, tallies
from longmlm.model.mlm import MlmObjective, MlmOutput
from tests.support.families import tiny_model
from tests.support.tiny import NUM_POSITIONS


def test_offsets_count_from_the_start_of_the_document_in_the_row() -> None:
    row = Row(np.arange(12), np.array([1, 6, 9]), np.array([0, 0, 1]))
    assert row.document_offsets(np.array([1, 5, 6, 8, 9, 11])).tolist() == [0, 4, 0, 2, 0, 2]


def test_gains_by_offset_are_those_of_the_tokens_there(
    frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole rows, tokens at least 8 into their document are predicted correctly; in chunks, every fourth one."""
    objective, half = MlmObjective(tiny_model("roberta", 1)), NUM_POSITIONS // 2
    found, hits_of = {}, {}
    for name in ("whole", "chunks"):
        view = viewer_of(name, NUM_POSITIONS, frozen.special)
        rows = [(frozen.masked(row_id), number) for number, row_id in enumerate(frozen.row_ids)]
        shown = [(masked, number, one) for masked, number in rows for one in view(masked)]
        shown.sort(key=lambda item: -len(item[2].masked.row))  # as batches are cut
        offsets = np.concatenate([masked.row.document_offsets(one.positions) for masked, _, one in shown])
        numbers = np.concatenate([np.full(len(one.positions), number) for _, number, one in shown])
        hits = offsets >= 8 if name == "whole" else np.arange(len(offsets)) % 4 == 0
        right, hits_of[name] = iter(hits), (numbers, offsets, hits)

        def predict(batch: MlmBatch, right: Iterator[np.bool_] = right) -> MlmOutput:
            correct = [bool(next(right)) for _ in batch.labels]
            return MlmOutput(torch.ones(len(correct)), torch.tensor(correct))

        monkeypatch.setattr(objective, "predict", predict)
        found |= tallies({name: Subject(objective, view)}, frozen, NUM_POSITIONS, accelerator)
    gains = gains_by_offset({"long_after": found["whole"], "base_chunks": found["chunks"]})
    assert [gain.first for gain in gains] == [half * number for number in range(len(gains))]
    assert len(gains) > 2
    for gain in gains:
        per_row = np.zeros((3, len(frozen.row_ids)))
        for index, (numbers, offsets, hits) in enumerate(hits_of.values()):
            inside = (gain.first <= offsets) & (offsets <= gain.last)
            np.add.at(per_row[index], numbers[inside], hits[inside])
            np.add.at(per_row[2], numbers[inside], 0.5)
        after, chunks, selected = per_row
        share = (after - chunks).sum() / selected.sum()
        squares = ((after - chunks - share * selected) ** 2).sum()
        num_rows = (selected > 0).sum()
        error = math.sqrt(squares * num_rows / (num_rows - 1)) / selected.sum()
        assert gain.long_after.num_selected == gain.base_chunks.num_selected == selected.sum()
        assert gain.long_after.accuracy == pytest.approx(100 * after.sum() / selected.sum())
        assert astuple(gain.gain) == pytest.approx((100 * share, 100 * error))
    assert gains_by_offset({"base_chunks": found["chunks"]}) == ()
    totals = [sum(one.measured.correct) for one in found.values()]
    assert totals == [hits.sum() for _, _, hits in hits_of.values()]
