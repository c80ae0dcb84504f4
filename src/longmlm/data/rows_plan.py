"""The plan of rows: all that they depend on, with a hash of the text."""

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from longmlm.artifacts.rows import RECIPE_VERSION, RowsPlan, SourceFile, SourceRecord
from longmlm.data.files import files_of, readable
from longmlm.data.words import recorded_words
from longmlm.errors import AbsentError, DataError
from longmlm.folders import sha256_of
from longmlm.hubs import storage
from longmlm.hubs.datasets import commit_of, is_local, source_files
from longmlm.hubs.model_files import tokenizer_sha256
from longmlm.hubs.storage import AnyPath, located, version_of
from longmlm.settings.prepare import PrepareRecipe, Source


class PlannedRows(NamedTuple):
    """The plan of rows, its sources (those on the hub pinned to a commit), and the names of text that is missing."""

    plan: RowsPlan
    sources: tuple[Source, ...]
    absent: tuple[str, ...]


def plan_rows(
    recipe: PrepareRecipe, tokenizer_fingerprint: str, earlier: RowsPlan | None = None, is_made: bool = False
) -> PlannedRows:
    """Returns the plan; a dataset on the hub has the commit of the same source in an earlier plan, else the newest.

    Files that are as an earlier plan records them are not read. If rows of that plan exist (`is_made`), text that is
    not there counts as what it records. Raises DataError for sources that cannot be used.
    """
    recorded = earlier.sources if earlier else ()
    known = {file.path: file for file in (earlier.files if earlier else ())}
    records, sources, absent = list[SourceRecord](), list[Source](), list[str]()
    for number, configured in enumerate(recipe.sources):
        before = recorded[number] if is_made and number < len(recorded) else None
        source, commit, files = configured, None, list[SourceFile]()
        if before and before.commit is None and before.dataset == configured.dataset and _is_on_hub(configured):
            absent.append(str(configured.dataset))  # it was a folder
            files += before.files
        elif _is_on_hub(configured):
            source = pinned(configured, recorded)
            commit = source.revision
        else:
            files += _files(configured, known, before, absent)
        sources.append(source)
        # all fields are passed on, so that one which the plan does not record is an error
        fields: dict[str, Any] = asdict(configured)  # Any: fields of many types; also below
        records.append(SourceRecord(**fields | {"commit": commit, "files": tuple(files)}))
    if is_made and earlier and earlier.terms_sha256 and recipe.terms and not Path(recipe.terms).exists():
        absent.append(recipe.terms)
        words = earlier.segmenter, earlier.terms_sha256
    else:
        words = recorded_words(recipe, earlier.segmenter if earlier else None)
    settings: dict[str, Any] = asdict(recipe) | {"sources": tuple(records)}  # Any: as above
    settings |= {"segmenter": words[0], "terms_sha256": words[1], "tokenizer_fingerprint": tokenizer_fingerprint}
    plan = RowsPlan(**settings, tokenizer_sha256=tokenizer_sha256(recipe.tokenizer), recipe_version=RECIPE_VERSION)
    return PlannedRows(plan, tuple(sources), tuple(absent))


def _files(
    source: Source, known: Mapping[str, SourceFile], before: SourceRecord | None, absent: list[str]
) -> Sequence[SourceFile]:
    """Returns the files of a source, and adds names of `files` that are missing to `absent`.

    The files recorded `before` are then returned, unless a file that exists is not among them.
    """
    try:
        paths = source_files(source) if source.dataset else files_of(source.files)
        return [_hashed(path, known) for path in paths]
    except AbsentError:
        if before is None or source.dataset:
            raise
    found: list[SourceFile] = []
    for name in source.files:
        try:
            found += [_hashed(path, known) for path in files_of([name])]
        except AbsentError:
            absent.append(name)
    is_part = {*replace(before, files=tuple(found)).contents} <= {*before.contents}
    return before.files if is_part else found


def _is_on_hub(source: Source) -> bool:
    return source.dataset is not None and not is_local(source)


def pinned(source: Source, earlier: Sequence[SourceRecord] = ()) -> Source:
    """Returns a source of the hub at a commit: that of the same source in an earlier plan, else the newest."""
    wanted = (source.dataset, source.subset, source.split, source.revision)
    for record in earlier:
        if record.commit and (record.dataset, record.subset, record.split, record.revision) == wanted:
            return replace(source, revision=record.commit)
    return replace(source, revision=commit_of(str(source.dataset), source.revision))


def _hashed(path: AnyPath, known: Mapping[str, SourceFile]) -> SourceFile:
    """Returns a file with its hash, for which it is only read if it is not as it is `known`.

    A program can change a file and set its time back: that is not noticed.
    """
    earlier = known.get(str(path))
    if isinstance(path, Path):
        status = path.stat()  # before the content, so that a later change shows
        size, mtime_ns = status.st_size, status.st_mtime_ns
        if earlier and (earlier.bytes, earlier.mtime_ns) == (size, mtime_ns):
            return earlier
        return SourceFile(path=str(path), sha256=_sha256_of(path, size, mtime_ns), bytes=size, mtime_ns=mtime_ns)
    with readable(path):
        size, version, sha256 = version_of(path)
        if sha256 is None and version and earlier and earlier.version == version:
            sha256 = earlier.sha256
        sha256 = sha256 or _sha256_of(path, size, version or time.monotonic_ns())
    return SourceFile(path=str(path), sha256=sha256, version=version)


@functools.cache
def _sha256_of(path: AnyPath, _size: int, _version: int | str) -> str:
    """Returns the SHA-256 of a file, read once in a process that plans the same rows several times."""
    if isinstance(path, Path):
        return sha256_of(path)
    with storage.open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files_unchanged(files: Sequence[SourceFile]) -> None:
    """Raises DataError for a source file whose content is no longer the one that was hashed."""
    for file in files:
        try:
            has_changed = _hashed(located(file.path), {file.path: file}).sha256 != file.sha256
        except (FileNotFoundError, NotADirectoryError):
            has_changed = True
        if has_changed:
            raise DataError(
                f"{file.path} changed while its rows were made, so none are kept: run the same command again when the "
                "file is complete"
            )
