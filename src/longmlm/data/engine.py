"""Preparation of rows: slices packed by an executor, and the sealed folder."""

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, Families, RowsManifest, RowsPlan, read_rows_manifest
from longmlm.artifacts.unfinished_rows import WorkPlan
from longmlm.data.corpus import check_splits, plan_slices
from longmlm.data.duplicates import find_families, survey_slice
from longmlm.data.encoding import exact_encoder
from longmlm.data.executor import run_slices
from longmlm.data.fast_encoding import MakeEncoder
from longmlm.data.files import SET_ASIDE
from longmlm.data.languages import bytes_per_token, check_language
from longmlm.data.rows import token_bytes
from longmlm.data.rows_plan import check_files_unchanged, plan_rows
from longmlm.data.slices import CONTENT, SURVEYS, UNFINISHED, SliceJob, seal_slices
from longmlm.data.vocabulary import Vocabulary
from longmlm.data.words import check_shows_words, segmenter_of
from longmlm.errors import ArtifactError, DataError, EncoderError, UserError, counted
from longmlm.processes import exclusive_lock
from longmlm.progress import message
from longmlm.settings.prepare import Encoder, PrepareRecipe
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
    plan, sources, _ = plan_rows(recipe, vocabulary.fingerprint, _previous_plan(output), output.exists())
    if not output.exists():
        slices = plan_slices(sources, recipe.slice_bytes)
        cuts = [[(span.start, span.end, span.source, span.size) for span in spans] for spans in slices]
        work = WorkPlan(plan=plan, slices_sha256=hashlib.sha256(repr(cuts).encode()).hexdigest())
        check_splits(recipe, slices)
        segmenter = segmenter_of(recipe)
        if segmenter:
            check_shows_words(vocabulary.tokenizer, vocabulary.name)
        job = SliceJob(recipe, vocabulary, dict(enumerate(slices)), partial_of(output), segmenter=segmenter)
        check_temporary(job.folder)
        with exclusive_lock(job.folder):
            claim(job.folder)
            if not output.exists():
                _write(job, work, output, executor, encoder)
    discard(partial_of(output))
    manifest = read_rows_manifest(output)
    if not manifest.plan.is_same(plan):
        problem = "was made from other text or settings"
        if manifest.plan.is_same(replace(plan, recipe_version=manifest.plan.recipe_version)):
            problem = "was made by a version of longmlm with other rules for sentences and rows"
        raise DataError(f"{output} {problem}: remove it or name another output")
    return manifest


def _previous_plan(output: Path) -> RowsPlan | None:
    """Returns the plan of the rows in `output`, or of unfinished ones; None if there are none that can be read."""
    for kind, folder in ((RowsManifest, output), (WorkPlan, partial_of(output))):
        try:
            return artifact.read(kind, folder / kind.FILE).plan
        except UserError:
            continue
    return None


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
        check_files_unchanged(work.plan.files)
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
        then, now = ([(file.bytes, file.mtime_ns) for file in one.plan.files] for one in (earlier, work))
        is_kept = earlier.plan.is_same(work.plan) and (earlier.slices_sha256, then) == (work.slices_sha256, now)
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
