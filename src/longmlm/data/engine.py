"""Preparation of rows: a plan of all that they depend on, slices packed by an executor, and the sealed folder."""

import functools
import hashlib
import operator
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import (
    RECIPE_VERSION,
    SPLITS,
    Families,
    RowsManifest,
    RowsPlan,
    SourceFile,
    SourceRecord,
    read_rows_manifest,
)
from longmlm.artifacts.unfinished_rows import FileStamp, WorkPlan
from longmlm.data.corpus import check_splits, plan_slices
from longmlm.data.duplicates import find_families, survey_slice
from longmlm.data.encoding import exact_encoder
from longmlm.data.executor import run_slices
from longmlm.data.fast_encoding import MakeEncoder
from longmlm.data.files import SET_ASIDE, files_of, readable
from longmlm.data.languages import bytes_per_token, check_language
from longmlm.data.rows import token_bytes
from longmlm.data.slices import CONTENT, SURVEYS, UNFINISHED, SliceJob, seal_slices
from longmlm.data.vocabulary import Vocabulary
from longmlm.data.words import check_tells_words, recorded_words, segmenter_of
from longmlm.errors import ArtifactError, DataError, EncoderError, UserError, counted
from longmlm.folders import sha256_of
from longmlm.hubs import storage
from longmlm.hubs.datasets import commit_of, is_local, source_files
from longmlm.hubs.model_files import tokenizer_sha256
from longmlm.hubs.storage import AnyPath, located, version_of
from longmlm.processes import exclusive_lock
from longmlm.progress import message
from longmlm.settings.prepare import Encoder, PrepareRecipe, Source
from longmlm.temporary import PARTIAL, check_temporary, check_writable, claim, discard, empty, partial_of

DIFFERS = "fast_encoder_differs"  # a file in the folder of unfinished rows
Executor = Callable[..., None]  # takes a job, the numbers of slices, and the work, by default pack_slice


def prepare_rows(
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    executor: Executor = run_slices,
    encoder: Encoder = "tokenizers",
) -> RowsManifest:
    """Writes the folder of rows that `recipe` describes, and returns its manifest.

    `executor` does the work on the slices whose numbers it is given. With the encoder "auto", a fast one is used if it
    is installed and gives the same tokens as tokenizers; if they turn out to differ, all slices are made with
    tokenizers. If the same rows exist, nothing is done; after an interruption, finished slices are kept.

    Raises DataError when the folder holds other rows, when a split would be empty or when a source changes meanwhile,
    and FolderError while another process writes there.
    """
    if not output.is_dir():
        check_writable(output)
    for source in recipe.sources:
        check_language(source.language)
    work, sources = plan_rows(recipe, vocabulary.fingerprint, _previous_plan(output))
    if not output.exists():
        slices = plan_slices(sources, recipe.slice_bytes)
        cuts = [[(span.start, span.end, span.source, span.size) for span in spans] for spans in slices]
        work = replace(work, slices_sha256=hashlib.sha256(repr(cuts).encode()).hexdigest())
        check_splits(recipe, slices)
        segmenter = segmenter_of(recipe)
        if segmenter:
            check_tells_words(vocabulary.tokenizer, vocabulary.name)
        job = SliceJob(recipe, vocabulary, dict(enumerate(slices)), partial_of(output), segmenter=segmenter)
        check_temporary(job.folder)
        with exclusive_lock(job.folder):
            claim(job.folder)
            if not output.exists():
                _write(job, work, output, executor, encoder)
    discard(partial_of(output))
    manifest = read_rows_manifest(output)
    if not manifest.plan.is_same(work.plan):
        problem = "was made from other text or settings"
        if manifest.plan == replace(work.plan, recipe_version=manifest.plan.recipe_version):
            problem = "was made by a version of longmlm with other rules for sentences and rows"
        raise DataError(f"{output} {problem}: remove it or name another output")
    return manifest


def plan_rows(
    recipe: PrepareRecipe, tokenizer_fingerprint: str, earlier: RowsPlan | None = None
) -> tuple[WorkPlan, tuple[Source, ...]]:
    """Returns the plan, and the recipe's sources with those of the hub at a commit.

    That is the commit of the same source in an earlier plan, if there is one, else what the revision means now. Raises
    DataError for sources that cannot be used.
    """
    sources = pin_sources(recipe.sources, earlier.sources if earlier else ())
    known = {file.path: file for source in (earlier.sources if earlier else ()) for file in source.files}
    records: list[SourceRecord] = []
    stamps: list[FileStamp] = []
    for configured, source in zip(recipe.sources, sources, strict=True):
        files = [] if _is_on_hub(source) else source_files(source) if source.dataset else files_of(source.files)
        stamped = [_stamp(path, known) for path in files]
        stamps += stamped
        # all fields are passed on, so that one which the plan does not record is an error
        fields: dict[str, Any] = asdict(configured)  # Any: fields of many types; also below
        fields["commit"] = source.revision if _is_on_hub(source) else None
        fields["files"] = tuple(SourceFile(path=one.path, sha256=one.sha256, version=one.version) for one in stamped)
        records.append(SourceRecord(**fields))
    settings: dict[str, Any] = asdict(recipe) | {"sources": tuple(records)}  # Any: as above
    hashes = {"tokenizer_sha256": tokenizer_sha256(recipe.tokenizer), "tokenizer_fingerprint": tokenizer_fingerprint}
    segmenter, terms_sha256 = recorded_words(recipe, earlier.segmenter if earlier else None)
    settings |= {"segmenter": segmenter, "terms_sha256": terms_sha256}
    plan = RowsPlan(**settings, **hashes, recipe_version=RECIPE_VERSION)
    return WorkPlan(plan=plan, files=tuple(stamps)), sources


def pin_sources(sources: Sequence[Source], earlier: Sequence[SourceRecord]) -> tuple[Source, ...]:
    """Returns the sources, those of the hub at a commit: the one in an earlier record, else what the revision means."""
    return tuple(
        replace(source, revision=_commit(source, earlier)) if _is_on_hub(source) else source for source in sources
    )


def _is_on_hub(source: Source) -> bool:
    return source.dataset is not None and not is_local(source)


def _commit(source: Source, earlier: Sequence[SourceRecord]) -> str:
    wanted = (source.dataset, source.subset, source.split, source.revision)
    for record in earlier:
        if record.commit and (record.dataset, record.subset, record.split, record.revision) == wanted:
            return record.commit
    return commit_of(str(source.dataset), source.revision)


def _previous_plan(output: Path) -> RowsPlan | None:
    """Returns the plan of the rows in `output`, or of unfinished ones; None if there are none that can be read."""
    for kind, folder in ((RowsManifest, output), (WorkPlan, partial_of(output))):
        try:
            return artifact.read(kind, folder / kind.FILE).plan
        except UserError:
            continue
    return None


def _stamp(path: AnyPath, known: Mapping[str, SourceFile]) -> FileStamp:
    """Returns the stamp of a file. A remote one is only read if neither its version nor its hash is known."""
    if isinstance(path, Path):
        status = path.stat()  # before the content, so that a later change shows
        size, mtime_ns = status.st_size, status.st_mtime_ns
        return FileStamp(path=str(path), sha256=_sha256_of(path, size, mtime_ns), bytes=size, mtime_ns=mtime_ns)
    with readable(path):
        size, version, sha256 = version_of(path)
        earlier = known.get(str(path))
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


def _write(job: SliceJob, work: WorkPlan, output: Path, executor: Executor, encoder: Encoder) -> None:
    _open_partial(job.folder, work)
    job = replace(job, make_encoder=_fast_encoder(job) if encoder == "auto" and not job.segmenter else None)
    numbers = job.unfinished()
    if num_packed := len(job.slices) - len(numbers):
        message(f"resuming: {num_packed} of {counted(len(job.slices), 'slice')} packed before")
    _check_disk_space(job, numbers)
    started = time.monotonic()
    families = _families(job, executor)
    try:
        executor(job, numbers)
    except EncoderError as error:
        _give_up_fast_encoder(job, error)
        job = replace(job, make_encoder=None)
        numbers = job.unfinished()
        executor(job, numbers)
    elapsed_seconds = time.monotonic() - started
    if lost := job.unfinished():
        raise DataError(f"files of {counted(len(lost), 'slice')} in {job.folder} are lost: run the same command again")
    try:
        check_files_unchanged(work.files)
    except DataError:
        discard(job.folder)
        raise
    seal_slices(job, work.plan, output, numbers, elapsed_seconds, families)


def _families(job: SliceJob, executor: Executor) -> Families | None:
    """Returns the families of copies, and prepares packing to treat them; None if copies are not looked for."""
    if job.recipe.sought == "keep":
        return None
    message(f"looking for {job.recipe.sought} copies of documents")
    executor(job, [number for number in range(len(job.slices)) if not job.survey_path(number).is_file()], survey_slice)
    return find_families(job)


def _fast_encoder(job: SliceJob) -> MakeEncoder | None:
    """Returns what makes a fast encoder; None if there is none that gives the tokens of tokenizers on this corpus."""
    if (job.folder / DIFFERS).exists():
        return None
    try:
        return exact_encoder(job.vocabulary.tokenizer)
    except EncoderError as error:
        _give_up_fast_encoder(job, error)
        return None


def _give_up_fast_encoder(job: SliceJob, error: EncoderError) -> None:
    """Reports it and records it for later runs, since one encoder makes all rows of a folder."""
    (job.folder / DIFFERS).touch()
    message(f"{error}: the whole corpus is encoded with tokenizers")


def _open_partial(folder: Path, work: WorkPlan) -> None:
    """Discards unfinished rows of another plan, and what a killed process left."""
    try:
        earlier = artifact.read(WorkPlan, folder / WorkPlan.FILE)
        pair = ((one.slices_sha256, *(file.content for file in one.files)) for one in (earlier, work))
        is_kept = earlier.plan.is_same(work.plan) and operator.eq(*pair)
    except ArtifactError:
        is_kept = False
    if not is_kept:
        empty(folder)
    for leftover in folder.rglob(f"*{PARTIAL}"):
        leftover.unlink(missing_ok=True)  # a task of a killed driver may remove its own
    for name in ("reports", SURVEYS, UNFINISHED, *(f"{CONTENT}/{name}" for name in (*SPLITS, SET_ASIDE))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    artifact.write(folder / WorkPlan.FILE, work)


def _check_disk_space(job: SliceJob, numbers: Sequence[int]) -> None:
    num_bytes = token_bytes(job.vocabulary.size)
    per_token = [bytes_per_token(source.language) for source in job.recipe.sources]
    spans = (span for number in numbers for span in job.slices[number])
    needed = sum(span.size * num_bytes // per_token[span.source] for span in spans)
    free = shutil.disk_usage(job.folder).free
    if needed > free:
        if len(numbers) == len(job.slices):
            discard(job.folder)
        raise DataError(
            f"the rows need about {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free for {job.folder}: "
            "free some space or name another output"
        )
