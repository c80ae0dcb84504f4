"""Files that longmlm wrote itself: a pattern such as **/*.jsonl that reaches them does not make them a corpus."""

import os
from collections.abc import Iterable
from pathlib import Path

from longmlm.temporary import MARK, is_own_file

STAMPED = ("manifest.json", "evaluation.json", "comparison.json", "downstream.json", "record.json", "summary.json")
STAMP, STAMP_BYTES = b'"longmlm"', 200  # a key near the beginning of such a file
NAMED = ("longmlm.json", "trial.toml", MARK)
SET_ASIDE, LOCK = "set_aside", ".lock"


def own_files(paths: Iterable[Path], pattern: str) -> set[Path]:
    """Returns those of the paths, which match a pattern, that are in a folder that longmlm wrote: a result of a stage.

    Folders that the pattern names without a wildcard count as the user's: a file in them was meant.
    """
    parts = Path(pattern).parts
    num_named = next((index for index, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    known: dict[Path, bool] = {}
    return {
        path
        for path in paths
        if any(_is_own(folder, known) for folder in path.parents if len(folder.parts) > num_named)
    }


def _is_own(folder: Path, known: dict[Path, bool]) -> bool:
    if folder not in known:
        known[folder] = (
            any(os.path.lexists(folder / name) for name in NAMED)
            or any(_is_stamped(folder / name) for name in STAMPED)
            or is_own_file(folder / "settings.toml", "# longmlm ")  # a run in training
            or (folder.name == SET_ASIDE and (folder.parent / LOCK).is_file())  # of downstream
        )
    return known[folder]


def _is_stamped(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return STAMP in file.read(STAMP_BYTES)
