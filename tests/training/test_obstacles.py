"""Folders of runs and trials: what longmlm did not make there stays, and what it made is removed."""

from pathlib import Path

import pytest

from longmlm.errors import FolderError
from longmlm.temporary import check_own_file, claim, discard, move_aside, remove_inside, remove_with
from longmlm.training.run_folder import CHECKPOINTS, check_new_run, discard_partial_checkpoints, newest_verified, prune
from tests.support.obstacles import (
    FOLDERS,
    MINE,
    Make,
    a_dangling_link,
    a_file,
    a_folder,
    a_link_to_a_file,
    everything,
    names_in,
)


def prune_to_one(folder: Path) -> None:
    for name in ("step-00000001", "step-00000002"):
        (folder.parent / CHECKPOINTS / name).mkdir(parents=True, exist_ok=True)
    prune(folder.parent, folder.parent / CHECKPOINTS / "step-00000002", 1)


@pytest.mark.parametrize("make", [*FOLDERS])
def test_checkpoints_that_longmlm_did_not_make_stay(tmp_path: Path, make: Make) -> None:
    checkpoints = tmp_path / CHECKPOINTS
    checkpoints.mkdir()
    claim(checkpoints / "step-00000003.partial")
    make(checkpoints / "step-00000001.partial")
    before = everything(tmp_path)
    for act in (discard_partial_checkpoints, lambda run: prune_to_one(run / "any")):
        with pytest.raises(FolderError, match=r"step-00000001\.partial"):
            act(tmp_path)
        assert everything(tmp_path) == before
    make(tmp_path / "step-00000001.earlier.partial")
    newest = newest_verified(tmp_path / "absent")
    assert newest.folder is None


def test_checkpoints_are_pruned_and_those_of_a_killed_process_discarded(tmp_path: Path) -> None:
    claim(tmp_path / CHECKPOINTS / "step-00000001.partial")
    prune_to_one(tmp_path / "any")
    assert names_in(tmp_path / CHECKPOINTS) == ["step-00000002"]
    claim(tmp_path / CHECKPOINTS / "step-00000003.partial")
    discard_partial_checkpoints(tmp_path)
    assert names_in(tmp_path / CHECKPOINTS) == ["step-00000002"]


@pytest.mark.parametrize("make", [make for make in FOLDERS if make is not a_dangling_link])
def test_trials_that_longmlm_did_not_run_stay(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "trial.earlier")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "trial.toml").write_text("ours")
    before = everything(tmp_path)
    for act in (lambda: move_aside(tmp_path / "trial", ["trial.toml"]),
                lambda: remove_with(tmp_path / "trial.earlier", ["trial.toml"])):  # fmt: skip
        with pytest.raises(FolderError, match=r"trial\.earlier"):
            act()
        assert everything(tmp_path) == before
    discard(tmp_path / "trial.earlier")
    assert everything(tmp_path) == before


def test_trials_of_longmlm_are_moved_aside_and_removed(tmp_path: Path) -> None:
    for text in ("first", "second"):
        (tmp_path / "trial").mkdir()
        (tmp_path / "trial" / "trial.toml").write_text(text)
        assert move_aside(tmp_path / "trial", ["trial.toml"]) == tmp_path / "trial.earlier"
    assert everything(tmp_path) == {"trial.earlier/trial.toml": "second"}
    remove_with(tmp_path / "trial.earlier", ["trial.toml"])
    assert names_in(tmp_path) == []


def test_weights_of_a_trial_are_not_removed_through_a_link(tmp_path: Path) -> None:
    a_folder(tmp_path / "runs" / CHECKPOINTS)
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "run").symlink_to(tmp_path / "runs")
    remove_inside(tmp_path / "trial", f"run/{CHECKPOINTS}")
    assert (tmp_path / "runs" / CHECKPOINTS / "deep" / "mine.txt").read_text() == MINE
    a_folder(tmp_path / "trial" / "long")
    remove_inside(tmp_path / "trial", "long")
    assert names_in(tmp_path / "trial") == ["run"]


@pytest.mark.parametrize("name", ["settings.toml", "metrics.jsonl", "summary.json", "deepspeed.json"])
@pytest.mark.parametrize("make", [a_file, a_link_to_a_file, a_folder])
def test_files_of_the_user_in_the_folder_of_a_new_run_stay(tmp_path: Path, name: str, make: Make) -> None:
    check_new_run(tmp_path)
    make(tmp_path / name)
    before = everything(tmp_path)
    with pytest.raises(FolderError, match=name):
        check_new_run(tmp_path)
    assert everything(tmp_path) == before


def test_file_that_starts_as_longmlm_begins_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    check_own_file(path, "# longmlm")
    path.write_text("# longmlm run\n")
    check_own_file(path, "# longmlm")
    path.write_text("output = '.'\n# longmlm")
    with pytest.raises(FolderError, match=r"pipeline\.toml"):
        check_own_file(path, "# longmlm")
