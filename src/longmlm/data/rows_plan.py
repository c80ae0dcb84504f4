"""The plan of rows: all that they depend on, with a hash of the text, and stamps by which unchanged text is known."""

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import RECIPE_VERSION, RowsManifest, RowsPlan, SourceFile, SourceRecord
from longmlm.artifacts.unfinished_rows import FileStamp, SourceStamps, WorkPlan
from longmlm.data.files import files_of, readable
from longmlm.data.words import recorded_words
from longmlm.errors import AbsentError, ArtifactError, DataError, FolderError
from longmlm.folders import sha256_of
from longmlm.hubs import storage
from longmlm.hubs.datasets import commit_of, is_local, source_files
from longmlm.hubs.model_files import tokenizer_sha256
from longmlm.hubs.storage import AnyPath, located, version_of
from longmlm.settings.prepare import PrepareRecipe, Source


class PlannedRows(NamedTuple):
    """The plan of rows, its sources (those on the hub pinned to a commit), and the names of text that is missing."""

    work: WorkPlan
    sources: tuple[Source, ...]
    absent: tuple[str, ...]


def plan_rows(
    recipe: PrepareRecipe, tokenizer_fingerprint: str, earlier: RowsPlan | None = None, made: Path | None = None
) -> PlannedRows:
    """Returns the plan; a dataset on the hub has the commit of the same source in an earlier plan, else the newest.

    `made` is a folder of rows that an earlier plan made: files with the size and time of its stamps are not read, and
    text that is not there counts as what that plan records. Raises DataError for sources that cannot be used.
    """
    recorded = earlier.sources if earlier else ()
    known = {file.path: file for source in recorded for file in source.files}
    known |= {stamp.path: stamp for stamp in _read_stamps(made)}
    records, sources, stamps, absent = list[SourceRecord](), list[Source](), list[FileStamp](), list[str]()
    for number, configured in enumerate(recipe.sources):
        before = recorded[number] if made and number < len(recorded) else None
        source, commit, found = configured, None, list[SourceFile]()
        if before and before.commit is None and before.dataset == configured.dataset and _is_on_hub(configured):
            absent.append(str(configured.dataset))  # it was a folder
            found += before.files
        elif _is_on_hub(configured):
            source = pinned(configured, recorded)
            commit = source.revision
        else:
            found += _files(configured, known, before, absent)
        sources.append(source)
        stamps += [file for file in found if isinstance(file, FileStamp)]
        # all fields are passed on, so that one which the plan does not record is an error
        fields: dict[str, Any] = asdict(configured)  # Any: fields of many types; also below
        fields |= {"commit": commit, "files": tuple(map(_recorded, found))}
        records.append(SourceRecord(**fields))
    if made and earlier and earlier.terms_sha256 and recipe.terms and not Path(recipe.terms).exists():
        absent.append(recipe.terms)
        words = earlier.segmenter, earlier.terms_sha256
    else:
        words = recorded_words(recipe, earlier.segmenter if earlier else None)
    settings: dict[str, Any] = asdict(recipe) | {"sources": tuple(records)}  # Any: as above
    settings |= {"segmenter": words[0], "terms_sha256": words[1], "tokenizer_fingerprint": tokenizer_fingerprint}
    plan = RowsPlan(**settings, tokenizer_sha256=tokenizer_sha256(recipe.tokenizer), recipe_version=RECIPE_VERSION)
    return PlannedRows(WorkPlan(plan=plan, files=tuple(stamps)), tuple(sources), tuple(absent))


def _files(
    source: Source, known: Mapping[str, SourceFile], before: SourceRecord | None, absent: list[str]
) -> Sequence[SourceFile]:
    """Returns the stamps of the files of a source, and adds names of `files` that are missing to `absent`.

    The files recorded `before` are then returned, unless a file that exists is not among them.
    """
    try:
        paths = source_files(source) if source.dataset else files_of(source.files)
        return [_stamp(path, known) for path in paths]
    except AbsentError:
        if before is None or source.dataset:
            raise
    found: list[SourceFile] = []
    for name in source.files:
        try:
            found += [_stamp(path, known) for path in files_of([name])]
        except AbsentError:
            absent.append(name)
    contents = replace(before, files=tuple(map(_recorded, found))).without_names().files
    return before.files if {*contents} <= {*before.without_names().files} else found


def _recorded(file: SourceFile) -> SourceFile:
    return SourceFile(path=file.path, sha256=file.sha256, version=file.version)


def _read_stamps(folder: Path | None) -> tuple[FileStamp, ...]:
    with suppress(ArtifactError):
        return artifact.read(SourceStamps, folder / SourceStamps.FILE).files if folder else ()
    return ()


def write_stamps(folder: Path, planned: PlannedRows) -> None:
    """Writes the stamps of the text of complete rows beside them, if they have changed and all of it is there."""
    is_complete = (folder / RowsManifest.FILE).is_file()
    if is_complete and not planned.absent and _read_stamps(folder) != planned.work.files:
        with suppress(OSError, FolderError):  # the rows may be read-only, or another process may write them too
            artifact.write(folder / SourceStamps.FILE, SourceStamps(files=planned.work.files))


def _is_on_hub(source: Source) -> bool:
    return source.dataset is not None and not is_local(source)


def pinned(source: Source, earlier: Sequence[SourceRecord] = ()) -> Source:
    """Returns a source of the hub at a commit: that of the same source in an earlier plan, else the newest."""
    wanted = (source.dataset, source.subset, source.split, source.revision)
    for record in earlier:
        if record.commit and (record.dataset, record.subset, record.split, record.revision) == wanted:
            return replace(source, revision=record.commit)
    return replace(source, revision=commit_of(str(source.dataset), source.revision))


def _stamp(path: AnyPath, known: Mapping[str, SourceFile]) -> FileStamp:
    """Returns the stamp of a file, which is only read if its hash is not known.

    It is known from a stamp of the same size and time, although a program can change a file and set its time back. That
    of a remote file is known from the storage, or from a stamp of the same version.
    """
    earlier = known.get(str(path))
    if isinstance(path, Path):
        status = path.stat()  # before the content, so that a later change shows
        size, mtime_ns = status.st_size, status.st_mtime_ns
        if isinstance(earlier, FileStamp) and (earlier.bytes, earlier.mtime_ns) == (size, mtime_ns):
            return earlier
        return FileStamp(path=str(path), sha256=_sha256_of(path, size, mtime_ns), bytes=size, mtime_ns=mtime_ns)
    with readable(path):
        size, version, sha256 = version_of(path)
        if sha256 is None and version and earlier and earlier.version == version:
            sha256 = earlier.sha256
        sha256 = sha256 or _sha256_of(path, size, version or time.monotonic_ns())
    return FileStamp(path=str(path), sha256=sha256, bytes=size, mtime_ns=0, version=version)


@functools.cache
def _sha256_of(path: AnyPath, _size: int, _version: int | str) -> str:
    """Returns the SHA-256 of a file, read once in a process that plans the same rows several times."""
    if isinstance(path, Path):
        return sha256_of(path)
    with storage.open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files_unchanged(files: Sequence[FileStamp]) -> None:
    """Raises DataError for a source file whose content is no longer the one that was hashed."""
    for stamp in files:
        try:
            has_changed = _stamp(located(stamp.path), {stamp.path: stamp}).sha256 != stamp.sha256
        except (FileNotFoundError, NotADirectoryError):
            has_changed = True
        if has_changed:
            raise DataError(
                f"{stamp.path} changed while its rows were made, so none are kept: run the same command again when the "
                "file is complete"
            )
