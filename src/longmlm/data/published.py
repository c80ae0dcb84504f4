"""Rows by name: a local folder, or hf:OWNER/NAME[@REVISION], which is pinned to a commit and downloaded."""

from collections.abc import Sequence
from pathlib import Path

from longmlm.artifacts.rows import SPLITS, RowsManifest, Split
from longmlm.data.rows import Rows, open_rows
from longmlm.errors import DataError, FolderError
from longmlm.hubs.datasets import commit_of, download
from longmlm.settings.publishing import Target, parse_target


def pin_rows(name: str, earlier: str | None = None) -> str:
    """Returns hf:OWNER/NAME@COMMIT for rows on the hub, and the name of a folder as it is.

    The commit is that of `earlier` if it pins the same rows and the name has no commit itself, otherwise the one that
    the revision means now. Raises DataError if there is none.
    """
    rows = _on_hub(name)
    if rows is None:
        return name
    pinned = f"hf:{rows.name}@{{}}"
    if earlier and earlier.startswith(pinned.format("")) and not rows.is_pinned:
        return earlier
    return pinned.format(commit_of(rows.name, rows.revision))


def folder_of_rows(pinned: str, splits: Sequence[Split] = SPLITS) -> Path:
    """Returns the folder of the rows; of pinned rows on the hub, the missing files of these splits are downloaded.

    Raises DataError if that fails.
    """
    if (rows := _on_hub(pinned)) is None:
        return Path(pinned)
    return download(rows.name, str(rows.revision), [RowsManifest.FILE, *(f"{split}/*" for split in splits)])


def open_named_rows(name: str, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split as open_rows does, from a folder or, pinned, from the hub."""
    try:
        return open_rows(folder_of_rows(name, [split]), split, verified)
    except FolderError as error:
        if _on_hub(name) is None:
            raise
        raise FolderError(f"{name}: {error}; to download that file again, remove it and what it links to") from None


def _on_hub(name: str) -> Target | None:
    if not name.startswith("hf:"):
        return None
    try:
        return parse_target(name, "dataset")
    except ValueError as error:
        raise DataError(f"rows: {error}") from None
