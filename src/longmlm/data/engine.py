"""Slices to shards: the steps of the prepare stage, run by datatrove with several workers."""

import errno
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger
from datatrove.utils.stats import PipelineStats
from tqdm import tqdm

from longmlm.data.corpus import Document, SetAside, Slice, is_held_out, plan_slices, read_slice
from longmlm.data.counts import Counts, merged, reasons_in, tokens_of
from longmlm.data.languages import bytes_per_token, check_language
from longmlm.data.packing import OpenRow, Row, TokenizedDocument, pack_document
from longmlm.data.plan import PLAN, pinned, plan_of, previous_plan
from longmlm.data.rows import FORMAT, SPLITS, VOCABULARY_ONLY, Shard, Split, open_shard
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary, encode
from longmlm.errors import DataError
from longmlm.folders import PARTIAL, partial_of, read_manifest, seal, write_json
from longmlm.processes import end_with_parent, exclusive_lock
from longmlm.settings.prepare import PrepareConfig, Source

LOCK = ".lock"  # what processes.alone holds
WHOLE = "whole"  # the folder that becomes the output; beside it lies what only the work needs
Steps = list[Callable[..., Any] | PipelineStep]
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_executor_of_this_worker: list["QuietExecutor"] = []


class ReadSlice(PipelineStep):
    """Yields the documents of slice `rank`, and writes down where a record stands that is none, and why."""

    name, type = "read a slice", "reader"

    def __init__(self, sources: Sequence[Source], slices: Sequence[Slice], folder: Path) -> None:
        super().__init__()
        self.sources, self.slices, self.folder = sources, slices, folder

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yields documents of our own kind, because a text may be too long for a string."""
        path = self.folder / WHOLE / "set_aside" / f"slice-{rank:05d}.jsonl"
        aside = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
        with aside.open("w", encoding="utf-8") as set_aside:
            for record in read_slice(self.slices[rank], self.sources):
                if isinstance(record, SetAside):
                    set_aside.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
                else:
                    yield record
        aside.replace(path)


@dataclass(frozen=True, slots=True)
class Side:
    """One split of a slice: its shard, the row that is being filled, and what was counted."""

    config: PrepareConfig
    shard: Shard
    row: OpenRow
    counts: Counts = field(default_factory=Counts)

    def add(self, document: TokenizedDocument) -> None:
        """Packs a document, and writes the rows that it fills."""
        counted = TokenizedDocument(self.counts.counted(document, self.row.capacity), document.source)
        for row in pack_document(self.row, counted, self.config.recipe.packing):
            self._write(row)

    def close(self) -> None:
        """Writes the row that is still open."""
        if self.row.length:
            self._write(self.row.close())

    def _write(self, row: Row) -> None:
        self.counts.count_row(row, self.config.recipe.row_length)
        self.shard.add(row)


class PackSlice(PipelineStep):
    """Tokenizes and packs the documents of a task, and writes a shard for each split that has documents."""

    name, type = "pack a slice", "writer"

    def __init__(self, config: PrepareConfig, vocabulary: Vocabulary, folder: Path) -> None:
        super().__init__()
        self.config, self.vocabulary, self.folder = config, vocabulary, folder

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Consumes the documents; what they gave is counted in the slice's report."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        sides: dict[Split, Side] = {}
        with ExitStack() as shards:
            for document in data or ():
                split: Split = (
                    "held_out" if is_held_out(document.text, self.config.recipe.held_out_fraction) else "train"
                )
                if split not in sides:
                    path = self.folder / WHOLE / split / f"slice-{rank:05d}.arrow"
                    shard = shards.enter_context(open_shard(path, self.vocabulary.size))
                    row = OpenRow(self.config.recipe.row_length - 2, self.vocabulary.special)
                    sides[split] = Side(self.config, shard, row)
                sides[split].add(self._tokenized(document))
            for side in sides.values():
                side.close()
        counts = {split: sides[split].counts if split in sides else Counts() for split in SPLITS}
        write_json(self.folder / "reports" / f"slice-{rank:05d}.json", {key: asdict(counts[key]) for key in counts})
        yield from ()

    def _tokenized(self, document: Document) -> TokenizedDocument:
        starts = sentence_starts(document.text, self.config.recipe.sources[document.source].language)
        return TokenizedDocument(encode(self.vocabulary.tokenizer, document.text, starts), document.source)


def _end_with_main() -> None:
    """Lets this worker end with its parent, the fork server, and with the main process, which that one outlives."""
    end_with_parent(signal.SIGKILL)
    Thread(target=_wait_for_main, daemon=True).start()


def _run_slice(pickled: bytes, rank: int) -> PipelineStats:
    """Does one task with the executor of the first one, as each copy of a tokenizer leaves its size behind.

    As an argument of the initializer it would fill the pipe by which a worker starts: workers would start one by one,
    and the pool would wait for ever for one that starts while another is killed.
    """
    if not _executor_of_this_worker:
        _executor_of_this_worker[:] = [pickle.loads(pickled)]  # noqa: S301 - of the main process
    (executor,) = _executor_of_this_worker
    return executor.run_slice(rank)


def _wait_for_main() -> None:
    if main := multiprocessing.parent_process():
        connection.wait([main.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


class QuietExecutor(LocalPipelineExecutor):
    """datatrove's local executor on a pool that notices a killed worker, with a progress bar instead of a log."""

    def run(self) -> None:
        """Runs every task that is not completed; raises DataError when a worker is killed or the disk is full."""
        ranks = self.get_incomplete_ranks()
        shown = {"desc": "prepare", "unit": "slice", "total": self.tasks, "initial": self.tasks - len(ranks)}
        if self.workers == 1:
            for rank in tqdm(ranks, **shown):
                self.run_slice(rank)
            return
        context, pickled = multiprocessing.get_context("forkserver"), pickle.dumps(self)
        with ProcessPoolExecutor(self.workers, mp_context=context, initializer=_end_with_main) as pool:
            try:
                tasks = [pool.submit(_run_slice, pickled, rank) for rank in ranks]
                for task in tqdm(as_completed(tasks), **shown):
                    task.result()
            except BrokenProcessPool:  # nothing is cancelled, because a broken pool may not survive that
                raise DataError(
                    "a worker was killed, perhaps for want of memory: run the same command again with fewer "
                    "num_workers; finished slices are kept"
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def run_slice(self, rank: int) -> PipelineStats:
        """Does one task in this process; what datatrove would log of it is not shown."""
        logger.disable("datatrove")
        return self._run_for_rank(rank)


def prepare_rows(config: PrepareConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """Writes the folder of rows that `config` asks for and returns its manifest.

    The same inputs find the folder as it is; a killed run goes on with the slices that it had not finished. Raises
    DataError when the folder holds something else, when there is no text, when no document was held out, or when the
    disk is full, and FolderError while another process writes the same rows.
    """
    for source in config.recipe.sources:
        check_language(source.language)
    output = Path(config.output)
    sources = pinned(config.recipe.sources, previous_plan(output))
    plan = plan_of(config, sources, vocabulary.fingerprint)
    if not output.exists():
        slices = tuple(plan_slices(sources, config.recipe.slice_bytes))
        if not slices:
            raise DataError("the sources hold no text: every file is empty")
        with exclusive_lock(partial_of(output)):
            if not output.exists():
                _write(config, vocabulary, slices, plan)
    shutil.rmtree(partial_of(output), ignore_errors=True)
    manifest = read_manifest(output)
    if manifest.get("kind") == "rows" and manifest.get("format") == VOCABULARY_ONLY:
        raise DataError(
            f"{output} was made by an earlier version, whose record does not cover the whole tokenizer: remove it or "
            "name another output"
        )
    if manifest.get("plan") != plan:
        raise DataError(f"{output} was made from other text or settings: remove it or name another output")
    return manifest


def _write(config: PrepareConfig, vocabulary: Vocabulary, slices: Sequence[Slice], plan: dict[str, Any]) -> None:
    """Packs what is not packed yet and seals the folder, which keeps finished slices until it is renamed."""
    output, partial = Path(config.output), partial_of(Path(config.output))
    try:
        _open_partial(partial, plan)
        report = _packed(config, vocabulary, slices, partial)
        _refuse_empty(report, partial)
        about = {
            "format": FORMAT,
            "kind": "rows",
            "row_length": config.recipe.row_length,
            "plan": plan,
            "report": report,
        }
        seal(partial / WHOLE, output, about)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DataError(
            f"the disk is full, or a file larger than allowed ({partial}): free some space and run the same command "
            "again; finished slices are kept"
        ) from error


def _packed(config: PrepareConfig, vocabulary: Vocabulary, slices: Sequence[Slice], partial: Path) -> dict[str, Any]:
    """Packs the slices that are not finished, and returns the report of all; its times are those of this run."""
    started = time.monotonic()
    steps: Steps = [ReadSlice(config.recipe.sources, slices, partial), PackSlice(config, vocabulary, partial)]
    logger.disable("datatrove")
    workers = min(config.runtime.num_workers, len(slices))
    executor = QuietExecutor(steps, tasks=len(slices), workers=workers, logging_dir=str(partial / "work"))
    ranks = executor.get_incomplete_ranks()
    token_bytes = 2 if vocabulary.size <= 1 << 16 else 4
    _refuse_full_disk(partial, [slices[rank] for rank in ranks], config.recipe.sources, token_bytes)
    executor.run()
    elapsed_seconds = time.monotonic() - started
    return {
        **merged(partial / "reports", config.recipe.row_length, len(config.recipe.sources)),
        "set_aside": reasons_in(partial / WHOLE / "set_aside"),
        "elapsed_seconds": elapsed_seconds,
        "tokens_per_second": tokens_of(partial / "reports", ranks) / elapsed_seconds,
    }


def _refuse_full_disk(partial: Path, slices: Sequence[Slice], sources: Sequence[Source], token_bytes: int) -> None:
    spans = (span for spans in slices for span in spans)
    needed = sum(span.size * token_bytes // bytes_per_token(sources[span.source].language) for span in spans)
    free = shutil.disk_usage(partial).free
    if needed > free:
        if not list((partial / "reports").iterdir()):
            shutil.rmtree(partial)
        raise DataError(
            f"the rows need about {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free for {partial}: "
            "free some space or name another output"
        )


def _open_partial(partial: Path, plan: dict[str, Any]) -> None:
    kept = partial / PLAN
    if not (kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) == plan):
        for path in partial.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
    for leftover in partial.rglob(f"*{PARTIAL}"):
        leftover.unlink()
    for name in ("reports", "work", *(f"{WHOLE}/{name}" for name in (*SPLITS, "set_aside"))):
        (partial / name).mkdir(parents=True, exist_ok=True)
    write_json(kept, plan)


def _refuse_empty(report: dict[str, Any], partial: Path) -> None:
    if not report["train"]["rows"] and not report["held_out"]["rows"]:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in report["set_aside"].items())
        shutil.rmtree(partial)
        raise DataError(f"no document could be read ({reasons}): check text_field and the files' encoding")
    for split, advice in (("held_out", "raise"), ("train", "lower")):
        if not report[split]["rows"]:
            num_documents = report["train"]["documents"] + report["held_out"]["documents"]
            shutil.rmtree(partial)
            raise DataError(f"none of {num_documents} documents is on the {split} side: {advice} held_out_fraction")
