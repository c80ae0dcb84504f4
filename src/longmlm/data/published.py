"""Rows by their name on the Hugging Face Hub to a folder on this machine, at a commit."""

import re
from collections.abc import Sequence
from pathlib import Path

from longmlm.artifacts.rows import SPLITS, Split
from longmlm.data.rows import Rows, open_rows
from longmlm.errors import DataError, FolderError
from longmlm.folders import MANIFEST
from longmlm.hubs.datasets import COMMIT, commit_of, downloaded

HUB = "hf:"
NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def pin_rows(name: str, earlier: str | None = None) -> str:
    """Returns hf:OWNER/NAME@COMMIT for rows on the hub, whatever revision was named, and a folder as it is.

    The commit is that of `earlier`, which pinned the same rows, else the one that the revision means now. Raises
    DataError when there is none to be had.
    """
    if not name.startswith(HUB):
        return name
    repository, revision = _parsed(name)
    if earlier and earlier.startswith(f"{HUB}{repository}@") and not COMMIT.fullmatch(revision or ""):
        return earlier
    return f"{HUB}{repository}@{commit_of(repository, revision)}"


def folder_of_rows(pinned: str, splits: Sequence[Split] = SPLITS) -> Path:
    """Returns the folder of the rows: of those on the hub the manifest and these splits are downloaded where they lack.

    Raises DataError when they cannot be had.
    """
    if not pinned.startswith(HUB):
        return Path(pinned)
    repository, commit = _parsed(pinned)
    return downloaded(repository, str(commit), [MANIFEST, *(f"{split}/*" for split in splits)])


def open_named_rows(name: str, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split as open_rows does, of a folder or, pinned, on the hub."""
    try:
        return open_rows(folder_of_rows(name, [split]), split, verified)
    except FolderError as error:
        if not name.startswith(HUB):
            raise
        raise FolderError(
            f"{name}: {error}; remove that file, and what it links to, to have it downloaded again"
        ) from None


def _parsed(name: str) -> tuple[str, str | None]:
    found = NAME.fullmatch(name)
    if found is None:
        raise DataError(f"{name} names no rows on the hub: write hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return found["repository"], found["revision"]
