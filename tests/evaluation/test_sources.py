"""Accuracy by source: that of the rows of each source, whose sums are those of all rows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from accelerate import Accelerator
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.accuracy import Measured
from longmlm.evaluation.frozen import FrozenRows, cut
from longmlm.evaluation.measure import measure
from longmlm.model.mlm import MlmObjective
from longmlm.settings.masking import HeldOut
from tests.support.rows import with_sources
from tests.support.tiny import NUM_POSITIONS, World


def of_sources(frozen: FrozenRows, shares: Sequence[float], max_rows: int | None = None) -> FrozenRows:
    rows = replace(frozen.rows, manifest=with_sources(frozen.rows.manifest, *shares))
    return replace(frozen, rows=rows, settings=HeldOut(max_rows=max_rows))


@pytest.mark.parametrize("max_rows", [None, 33])
def test_sources_divide_the_sums_of_all_rows(
    world: World, frozen: FrozenRows, accelerator: Accelerator, max_rows: int | None
) -> None:
    mixed = of_sources(frozen, (0.3, 0.5, 0.2), max_rows)
    objective = MlmObjective(AutoModelForMaskedLM.from_pretrained(world.trained))
    found = measure(objective, mixed, lambda row: cut(row, NUM_POSITIONS, mixed.special), NUM_POSITIONS, accelerator)
    parts: list[Measured] = [*found.sources.values()]
    assert list(found.sources) == ["novels", "laws", "letters"]
    ends = [0, *np.cumsum([*mixed.rows.rows_per_source.values()])]
    row_ids = mixed.row_ids
    assert [len(part.selected) for part in parts] == [
        sum(begin <= row_id < end for row_id in row_ids) for begin, end in pairwise(ends)
    ]
    for name in ("selected", "correct"):
        assert [count for part in parts for count in getattr(part, name)] == [*getattr(found, name)]
    sizes = [part.whole.num_selected for part in parts]
    assert min(sizes) > 5 and sum(sizes) == found.whole.num_selected
    for name in ("accuracy", "loss"):
        values = [getattr(part.whole, name) for part in parts]
        assert len(set(values)) == 3
        assert np.average(values, weights=sizes) == pytest.approx(getattr(found.whole, name))


def test_a_source_without_a_measured_row_is_left_out_and_one_source_is_not_told_apart(frozen: FrozenRows) -> None:
    assert list(of_sources(frozen, (0.5, 0.01, 0.49), max_rows=5).rows_by_source) == ["novels", "letters"]
    assert of_sources(frozen, (1.0,)).rows_by_source == {}
    assert frozen.rows_by_source == {}
