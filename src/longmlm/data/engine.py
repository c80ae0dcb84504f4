"""Preparation of rows from plan to manifest: what is not packed yet is packed by an executor, then all is sealed."""

import errno
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, RowsManifest, WorkPlan
from longmlm.data.corpus import HASHES, Document, plan_slices, read_slice, text_hash
from longmlm.data.executor import run_slices
from longmlm.data.languages import bytes_per_token, check_language
from longmlm.data.plan import check_files_unchanged, plan_rows
from longmlm.data.rows import read_rows_manifest
from longmlm.data.seal import seal_rows
from longmlm.data.slices import CONTENT, SET_ASIDE, SliceJob
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import ArtifactError, DataError
from longmlm.folders import PARTIAL, partial_of
from longmlm.processes import exclusive_lock
from longmlm.settings.prepare import PrepareRecipe

Executor = Callable[[SliceJob, Sequence[int]], None]
LOCK = ".lock"  # the file of exclusive_lock
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare_rows(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, executor: Executor = run_slices
) -> RowsManifest:
    """Writes the folder of rows that `recipe` describes, and returns its manifest.

    `executor` packs the slices of a job whose numbers it is given. Where the same rows exist, nothing is done; after an
    interruption, finished slices are kept. Raises DataError when the folder holds other rows, when a split would be
    empty, when a source changes meanwhile or the disk is full, and FolderError while another process writes there.
    """
    for source in recipe.sources:
        check_language(source.language)
    work, sources = plan_rows(recipe, vocabulary.fingerprint, output)
    if not output.exists():
        slices = tuple(plan_slices(sources, recipe.slice_bytes))
        job = SliceJob(recipe, vocabulary, slices, partial_of(output))
        check_splits(job)
        with exclusive_lock(job.folder), _explained_full_disk(job.folder):
            if not output.exists():
                _write(job, work, output, executor)
    shutil.rmtree(partial_of(output), ignore_errors=True)
    manifest = read_rows_manifest(output)
    if manifest.plan.tokenizer_fingerprint is None:
        raise DataError(
            f"{output} was made by an earlier version, whose manifest does not identify the whole tokenizer: remove it "
            "or name another output"
        )
    if manifest.plan != work.plan:
        raise DataError(f"{output} was made from other text or settings: remove it or name another output")
    return manifest


def check_splits(job: SliceJob) -> None:
    """Raises DataError when training or held-out documents would be missing; reads until there is one of each."""
    reasons: Counter[str] = Counter()
    num_documents, lowest, highest = 0, HASHES, 0
    for record in (record for spans in job.slices for record in read_slice(spans, job.recipe.sources)):
        if isinstance(record, Document):
            document_hash = text_hash(record.text)
            num_documents, lowest, highest = num_documents + 1, min(lowest, document_hash), max(highest, document_hash)
            if {job.split_of(lowest), job.split_of(highest)} == set(SPLITS):
                return
        else:
            reasons[record.reason] += 1
    if not num_documents:
        counted = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        raise DataError(f"the sources hold no document ({counted or 'no records'}): check text_field and the encoding")
    if lowest == highest:
        raise DataError(f"all {num_documents} documents are the same text: training and held-out rows need two")
    asked = f"at held_out_fraction = {job.recipe.held_out_fraction:g}"
    between = (lowest + highest) / 2 / HASHES
    if job.split_of(lowest) == "train":
        enough = min((lowest * 10_000 // HASHES + 1) / 10_000, between)
        raise DataError(f"none of {num_documents} documents is held out {asked}: set it to {enough:g} or more")
    enough = max(highest * 10_000 // HASHES / 10_000, between)
    raise DataError(f"all {num_documents} documents are held out {asked}: set it to {enough:g} or less")


def _write(job: SliceJob, work: WorkPlan, output: Path, executor: Executor) -> None:
    _open_partial(job.folder, work)
    numbers = job.unfinished()
    _check_disk_space(job, numbers)
    started = time.monotonic()
    executor(job, numbers)
    elapsed_seconds = time.monotonic() - started
    try:
        check_files_unchanged(work.files)
    except DataError:
        shutil.rmtree(job.folder)
        raise
    seal_rows(job, work.plan, output, numbers, elapsed_seconds)


def _open_partial(folder: Path, work: WorkPlan) -> None:
    """Discards unfinished rows of another plan, also those of earlier versions, and what a killed process left."""
    try:
        is_kept = artifact.read(WorkPlan, folder / WorkPlan.FILE).is_same_work(work)
    except ArtifactError:
        is_kept = False
    for path in () if is_kept else folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    for leftover in folder.rglob(f"*{PARTIAL}"):
        leftover.unlink()
    for name in ("reports", *(f"{CONTENT}/{name}" for name in (*SPLITS, SET_ASIDE))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    artifact.write(folder / WorkPlan.FILE, work)


def _check_disk_space(job: SliceJob, numbers: Sequence[int]) -> None:
    token_bytes = 2 if job.vocabulary.size <= 1 << 16 else 4
    spans = (span for number in numbers for span in job.slices[number])
    sources = job.recipe.sources
    needed = sum(span.size * token_bytes // bytes_per_token(sources[span.source].language) for span in spans)
    free = shutil.disk_usage(job.folder).free
    if needed > free:
        if len(numbers) == len(job.slices):
            shutil.rmtree(job.folder)
        raise DataError(
            f"the rows need about {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free for {job.folder}: "
            "free some space or name another output"
        )


@contextmanager
def _explained_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DataError(
            f"the disk is full, or a file larger than allowed ({folder}): free some space and run the same command "
            "again; finished slices are kept"
        ) from error
