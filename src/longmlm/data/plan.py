"""The plan of a data set of rows: all that they depend on, sources by the hash of their files or by a commit."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import FileStamp, RowsManifest, RowsPlan, SourceFile, SourceRecord, WorkPlan
from longmlm.data.files import files_of
from longmlm.errors import DataError, UserError
from longmlm.folders import partial_of, sha256_of
from longmlm.hubs.datasets import commit_of, is_local, source_files
from longmlm.settings.prepare import PrepareRecipe, Source


def plan_rows(recipe: PrepareRecipe, tokenizer_fingerprint: str, output: Path) -> tuple[WorkPlan, tuple[Source, ...]]:
    """Returns the plan, and the recipe's sources with those of the hub at a commit.

    That is the commit of an earlier plan for `output`, if there is one, else what the revision means now. Raises
    DataError for sources that cannot be used.
    """
    earlier = _previous_plan(output)
    sources = pinned(recipe.sources, earlier.sources if earlier else ())
    stamps = [_stamps_of(source) for source in sources]
    records = tuple(
        _record(asked, source, files) for asked, source, files in zip(recipe.sources, sources, stamps, strict=True)
    )
    # Any: all fields are passed on, so that one which the plan does not record is an error.
    settings: dict[str, Any] = {name: value for name, value in asdict(recipe).items() if name != "sources"}
    plan = RowsPlan(**settings, sources=records, tokenizer_fingerprint=tokenizer_fingerprint)
    return WorkPlan(plan=plan, files=tuple(stamp for files in stamps for stamp in files)), sources


def pinned(sources: Sequence[Source], earlier: Sequence[SourceRecord]) -> tuple[Source, ...]:
    """Returns the sources, those of the hub at a commit: the one in an earlier record, else what the revision means."""
    return tuple(
        replace(source, revision=_commit(source, earlier)) if source.dataset and not is_local(source) else source
        for source in sources
    )


def check_files_unchanged(files: Sequence[FileStamp]) -> None:
    """Raises DataError for a source file whose content is no longer the one that was hashed."""
    for stamp in files:
        path = Path(stamp.path)
        try:
            status = path.stat()
            is_touched = (status.st_size, status.st_mtime_ns) != (stamp.bytes, stamp.mtime_ns)
            has_changed = is_touched and sha256_of(path) != stamp.sha256
        except OSError:
            has_changed = True
        if has_changed:
            raise DataError(
                f"{path} changed while its rows were made, so none are kept: run the same command again when the file "
                "is complete"
            )


def _previous_plan(output: Path) -> RowsPlan | None:
    """Returns the plan of the rows in `output`, or of unfinished ones; None where there are none that can be read."""
    for kind, folder in ((RowsManifest, output), (WorkPlan, partial_of(output))):
        try:
            return artifact.read(kind, folder / kind.FILE).plan
        except (OSError, UserError):
            continue
    return None


def _commit(source: Source, earlier: Sequence[SourceRecord]) -> str:
    asked = (source.dataset, source.subset, source.split, source.revision)
    for record in earlier:
        if record.commit and (record.dataset, record.subset, record.split, record.revision) == asked:
            return record.commit
    return commit_of(str(source.dataset), source.revision)


def _stamps_of(source: Source) -> list[FileStamp]:
    if source.dataset and not is_local(source):
        return []
    return [_stamp(path) for path in (source_files(source) if source.dataset else files_of(source.files))]


def _stamp(path: Path) -> FileStamp:
    status = path.stat()  # before the content, so that a later change shows
    return FileStamp(path=str(path), sha256=sha256_of(path), bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def _record(asked: Source, pinned: Source, files: Sequence[FileStamp]) -> SourceRecord:
    fields: dict[str, Any] = {name: value for name, value in asdict(asked).items() if name != "files"}
    is_on_hub = asked.dataset is not None and not is_local(asked)
    return SourceRecord(
        **fields,
        commit=pinned.revision if is_on_hub else None,
        files=tuple(SourceFile(path=file.path, sha256=file.sha256) for file in files),
    )
