"""A file that the system cannot read is no damaged one: no other is chosen, and nothing is removed."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longmlm.data.rows_plan import _hashed, check_files_unchanged
from longmlm.errors import CheckpointError, DataError
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder, list_checkpoints, newest_verified, prune

NUMBERS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EACCES)
FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.pt", "rng-00000.pt")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Makes opening one file, the latest of several calls, fail with an error of the system."""
    opened, broken = Path.open, {}

    def open_or_fail(self: Path, *arguments: Any, **options: Any) -> Any:
        if self in broken:
            raise OSError(broken[self], os.strerror(broken[self]), str(self))
        return opened(self, *arguments, **options)

    def fail(path: Path, number: int) -> None:
        broken.clear()
        broken[path] = number

    monkeypatch.setattr(Path, "open", open_or_fail)
    return fail


def test_an_earlier_checkpoint_is_not_chosen_because_the_system_cannot_read_the_newest(
    run_folder: Path, failing: Callable
) -> None:
    for number, name in itertools.product(NUMBERS, FILES):
        path = checkpoint_folder(run_folder, 2) / name
        failing(path, number)
        with pytest.raises(CheckpointError, match="cannot be read") as raised:
            newest_verified(run_folder)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_the_best_checkpoint_is_neither_replaced_nor_removed_because_the_system_cannot_read_it(
    run_folder: Path, failing: Callable
) -> None:
    before = list_checkpoints(run_folder)
    for number in NUMBERS:
        failing(checkpoint_folder(run_folder, 1) / "state.json", number)
        for choose in (best_checkpoint, lambda run: prune(run, before[-1], 1)):
            with pytest.raises(OSError, match="state.json") as raised:
                choose(run_folder)
            assert raised.value.errno == number
        failing(checkpoint_folder(run_folder, 1) / "optimizer.pt", number)
        with pytest.raises(CheckpointError, match="step-00000001 cannot be read"):
            best_checkpoint(run_folder)
    assert list_checkpoints(run_folder) == before


def test_a_state_that_is_a_folder_is_damaged(run_folder: Path) -> None:
    state = checkpoint_folder(run_folder, 1) / "state.json"
    state.unlink()
    state.mkdir()
    assert best_checkpoint(run_folder) == checkpoint_folder(run_folder, 2)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_corpus_that_the_system_cannot_read_has_not_changed(tmp_path: Path, failing: Callable, number: int) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("A text.")
    file = _hashed(path, {})
    os.utime(path)
    failing(path, number)
    with pytest.raises(OSError, match="corpus.txt") as raised:
        check_files_unchanged([file])
    assert raised.value.errno == number
    path.unlink()
    with pytest.raises(DataError, match="changed while"):
        check_files_unchanged([file])
