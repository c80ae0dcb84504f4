"""Pairs in two processes, of which one has none in its first micro-batches: the losses and weights of one process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.data.rows import open_rows
from longmlm.settings.pretrain import PretrainConfig
from tests.support.launching import Ended, accelerate, run_in_turn
from tests.support.pairs import FAMILIES, pair_model, pair_rows, pair_settings
from tests.support.training import (
    evaluation_lines,
    train_here,
    training_lines,
    weights_at,
    with_recipe,
    with_runtime,
)

ZERO = (pytest.param(f"zero-{stage}.yaml", marks=pytest.mark.slow) for stage in (2, 3))
LAUNCHES = ("ddp.yaml", *ZERO)


def still(folder: Path, family: str) -> PretrainConfig:
    """Returns the settings of a run without dropout, one row at a time, some of which have one sentence."""
    folder.mkdir()
    rows = pair_rows(folder, pair_model(folder / "base", family))
    opened = open_rows(rows, "train")
    assert 3 < sum(len(opened[row_id].sentence_starts) == 1 for row_id in range(len(opened))) < len(opened) / 2
    still = with_recipe(pair_settings(folder, folder / "base", rows, FAMILIES[family]), dropout=0.0)
    return with_runtime(still, rows_per_micro_batch=1)


@pytest.fixture(scope="module", params=LAUNCHES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Ended]]:
    """By family, the run of one process, and that of two."""
    folder = tmp_path_factory.mktemp("pairs")
    settings = {family: still(folder / family, family) for family in FAMILIES}
    alone = {family: train_here(replace(one, run=str(folder / f"{family}-alone"))) for family, one in settings.items()}
    trainings = {family: (one, "none -1 0") for family, one in settings.items()}
    ended = run_in_turn(trainings, folder, accelerate(request.param, "--num_processes", "2"))
    return {family: (alone[family], ended[family]) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_train_on_pairs_as_one(trained: dict[str, tuple[Path, Ended]], family: str) -> None:
    one, two = trained[family][0], trained[family][1].succeeded()
    for target in ("mlm", "pair"):
        found = [[line.targets[target].loss for line in training_lines(run)] for run in (one, two)]
        assert found[1] == pytest.approx(found[0], rel=1e-5) and len(found[0]) == 8
    before, after = weights_at(one, 8), weights_at(two, 8)
    assert before.keys() == after.keys()
    assert max(float((before[name] - after[name]).abs().max()) for name in before) < 1e-4, (
        "after eight steps of up to 1e-3"
    )
    pairs = [[line.pairs for line in evaluation_lines(run)] for run in (one, two)]
    assert [one.num_pairs for one in pairs[0]] == [one.num_pairs for one in pairs[1]]
    assert [one.loss for one in pairs[1]] == pytest.approx([one.loss for one in pairs[0]], rel=1e-5)
    assert not any(torch.isnan(value).any() for value in after.values())
