"""What the longer context gains in each group of tokens equals a plain count over tokens."""

import math
from collections.abc import Iterator
from dataclasses import astuple

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from longmlm.artifacts.accuracy import GROUPINGS, group_names
from longmlm.batches.collate import MlmBatch
from longmlm.data.row import Row
from longmlm.evaluation.frozen import FrozenRows, RowView, groups_of, viewer_of
from longmlm.evaluation.measure import Subject, tallies
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective, MlmOutput
from tests.support.families import tiny_model
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World


def test_offsets_count_from_the_start_of_the_document_in_the_row() -> None:
    row = Row(np.arange(12), np.array([1, 6, 9]), np.array([0, 0, 1]))
    assert row.document_offsets(np.array([1, 5, 6, 8, 9, 11])).tolist() == [0, 4, 0, 2, 0, 2]


def test_gains_are_those_of_the_tokens_of_each_group(
    frozen: FrozenRows, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole rows, tokens at least 8 into their document are predicted correctly; in chunks, every fourth one."""
    objective = MlmObjective(tiny_model("roberta", 1))
    found, hits_of = {}, {}
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids]
    names = [group_names(grouping, NUM_POSITIONS, LONG_POSITIONS) for grouping in GROUPINGS]
    of_rows = [groups_of(row, NUM_POSITIONS, LONG_POSITIONS, isolates_documents=False) for row in masked]
    for name in ("whole", "chunks"):
        view = viewer_of(name, NUM_POSITIONS, frozen.special)
        shown = [(row, number, one) for number, row in enumerate(masked) for one in view(row)]
        shown.sort(key=lambda item: -len(item[2].masked.row))  # as batches are cut
        places = [(number, row.selected.tolist().index(at)) for row, number, one in shown for at in one.positions]
        offsets = np.concatenate([row.row.document_offsets(one.positions) for row, _, one in shown])
        hits = offsets >= 8 if name == "whole" else np.arange(len(offsets)) % 4 == 0
        right, hits_of[name] = iter(hits), (places, hits)

        def predict(batch: MlmBatch, right: Iterator[np.bool_] = right) -> MlmOutput:
            correct = [bool(next(right)) for _ in batch.labels]
            return MlmOutput(torch.ones(len(correct)), torch.tensor(correct))

        monkeypatch.setattr(objective, "predict", predict)
        found |= tallies({name: Subject(objective, view)}, frozen, NUM_POSITIONS, accelerator)
    gains, measured = found["whole"].gains_over(found["chunks"]), {name: one.measured for name, one in found.items()}
    assert [*gains] == [*measured["whole"].groups] == ["offset", "occurrence", "distance"]
    for number, grouping in enumerate(GROUPINGS[1:], 1):
        assert [*gains[grouping]] == names[number]
        first = sum(map(len, names[:number]))
        for group, name in enumerate(names[number]):
            per_row = np.zeros((3, len(frozen.row_ids)))
            for index, (places, hits) in enumerate(hits_of.values()):
                for (row, token), hit in zip(places, hits, strict=True):
                    if of_rows[row][number, token] == first + group:
                        per_row[index, row] += hit
                        per_row[2, row] += 0.5
            after, chunks, selected = per_row
            sides = [measured[view].groups[grouping][name] for view in ("whole", "chunks")]
            assert [side.num_selected for side in sides] == [selected.sum()] * 2
            if not selected.any():
                assert gains[grouping][name] is None
                continue
            share = (after - chunks).sum() / selected.sum()
            squares = ((after - chunks - share * selected) ** 2).sum()
            num_rows = (selected > 0).sum()
            error = math.sqrt(squares * num_rows / (num_rows - 1)) / selected.sum()
            assert sides[0].accuracy == pytest.approx(100 * after.sum() / selected.sum())
            assert astuple(gains[grouping][name]) == pytest.approx((100 * share, 100 * error))
    totals = [sum(one.correct) for one in measured.values()]
    assert totals == [hits.sum() for _, hits in hits_of.values()]
    assert all(one.num_selected > 20 for one in measured["whole"].groups["occurrence"].values())


@pytest.mark.parametrize("name", ["whole", "cut", "chunks"])
def test_the_groups_of_each_grouping_sum_up_to_the_whole(
    world: World, frozen: FrozenRows, accelerator: Accelerator, name: RowView
) -> None:
    subject = Subject(
        MlmObjective(load_model(str(world.trained)).model), viewer_of(name, NUM_POSITIONS, frozen.special)
    )
    measured = tallies({name: subject}, frozen, NUM_POSITIONS, accelerator)[name].measured
    correct = sum(measured.correct)
    assert 0 < correct < measured.whole.num_selected
    for groups in measured.groups.values():
        parts = [one for one in groups.values() if one.num_selected]
        assert len(parts) > 1
        assert sum(one.num_selected for one in parts) == measured.whole.num_selected
        assert sum(one.accuracy * one.num_selected for one in parts) == pytest.approx(100 * correct)
        losses = sum(one.loss * one.num_selected for one in parts)
        assert losses == pytest.approx(measured.whole.loss * measured.whole.num_selected)
