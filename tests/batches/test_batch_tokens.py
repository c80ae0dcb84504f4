"""Global batches in tokens, whatever the row format: right in the mean, and how far single steps deviate."""

from itertools import product
from typing import get_args

import numpy as np
import pytest

from longmlm.batches.pairs import Pairing
from longmlm.batches.sampling import global_batch, rows_per_step
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import PairKind
from longmlm.settings.prepare import PackingMode
from tests.support.pairs import pair_rows
from tests.support.worlds import World

ROWS = 64
MODES: tuple[PackingMode, ...] = get_args(PackingMode)


@pytest.fixture(scope="module", params=MODES)
def rows(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    mode: PackingMode = request.param
    folder = pair_rows(tmp_path_factory.mktemp(mode), world.base, mode, pairs=mode != "full-sentences")
    return open_rows(folder, "train")


def test_a_step_has_as_many_tokens_as_asked_for_in_the_mean(rows: Rows) -> None:
    batch_tokens = round(ROWS * rows.row_length * rows.mean_fill)
    num_rows = rows_per_step(batch_tokens, rows.row_length, rows.mean_fill, 1)
    lengths = np.array([len(rows[row_id]) for row_id in range(len(rows))])
    draws = [global_batch(step * num_rows, num_rows, len(rows), 3).row_ids for step in range(60)]
    tokens = np.array([lengths[draw].sum() for draw in draws])
    assert num_rows == ROWS and abs(tokens.mean() / batch_tokens - 1) < 0.005
    deviation = tokens.std() / tokens.mean()
    assert 0 < deviation < 0.08, "of 64 rows; the rows of an epoch are drawn without repetition"


@pytest.mark.parametrize(("rows", "kind"), [*product(MODES[1:], get_args(PairKind))], indirect=["rows"])
def test_pairs_add_a_separator_to_a_row(rows: Rows, world: World, kind: PairKind) -> None:
    """NSP changes the length of single rows, since another document's sentences are shorter or longer."""
    pairing = Pairing(kind, load_vocabulary(str(world.base)).special)
    own = np.array([len(rows[row_id]) for row_id in range(len(rows))])
    pairs = [[pairing.pair(rows, row_id, 3, epoch) for row_id in range(len(rows))] for epoch in range(2)]
    is_pair = np.array([pair.second_start < len(pair) for pair in pairs[0]])
    assert is_pair.mean() > 0.3
    found = np.array([[len(pair) for pair in epoch] for epoch in pairs])
    assert found.max() <= rows.row_length and (found[:, ~is_pair] == own[~is_pair]).all()
    if kind == "sop":
        assert (found[:, is_pair] == own[is_pair] + 1).all()
    else:
        assert abs(found.mean() / (own + is_pair).mean() - 1) < 0.1
