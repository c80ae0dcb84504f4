"""Slices to shards: the steps of the prepare stage, run by datatrove with several workers."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from datatrove.data import Document as TroveDocument
from datatrove.data import DocumentsPipeline
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger
from datatrove.utils.stats import PipelineStats
from tqdm import tqdm

from longmlm.data.config import PrepareConfig, Source
from longmlm.data.corpus import SetAside, Slice, files_of, is_held_out, plan_slices, read_slice
from longmlm.data.packing import PackedRow, pack, sentences_of
from longmlm.data.rows import FORMAT, Split, write_shard
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import TokenizedDocument, Vocabulary, encode
from longmlm.errors import DataError
from longmlm.folders import PARTIAL, partial_of, read_manifest, seal, sha256_of, write_json
from longmlm.processes import end_with_parent

Steps = list[Callable[..., Any] | PipelineStep]
SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(slots=True)
class Counts:
    """What went into the rows of one split."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    rows: int = 0
    separators: int = 0
    cut_sentences: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


class ReadSlice(PipelineStep):
    """Yields the documents of slice `rank`, and writes down where a record stands that is none, and why."""

    name, type = "read a slice", "reader"

    def __init__(self, sources: Sequence[Source], slices: Sequence[Slice], folder: Path) -> None:
        super().__init__()
        self.sources, self.slices, self.folder = sources, slices, folder

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[TroveDocument]:
        """Yields datatrove documents, whose metadata holds the number of their source."""
        with (self.folder / "set_aside" / f"slice-{rank:05d}.jsonl").open("w", encoding="utf-8") as set_aside:
            for record in read_slice(self.slices[rank], self.sources):
                if isinstance(record, SetAside):
                    set_aside.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
                else:
                    yield TroveDocument(record.text, record.origin, metadata={"source": record.source})


class PackSlice(PipelineStep):
    """Tokenizes and packs the documents of a task, and writes a shard for each split that has rows."""

    name, type = "pack a slice", "writer"

    def __init__(self, config: PrepareConfig, vocabulary: Vocabulary, folder: Path) -> None:
        super().__init__()
        self.config, self.vocabulary, self.folder = config, vocabulary, folder

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[TroveDocument]:
        """Consumes the documents; what they gave is counted in the slice's report."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenized: dict[Split, list[TokenizedDocument]] = {split: [] for split in SPLITS}
        for document in data or ():
            split: Split = "held_out" if is_held_out(document.text, self.config.held_out_fraction) else "train"
            tokenized[split].append(self._tokenized(document))
        counts = {split: Counts() for split in SPLITS}
        for split, documents in tokenized.items():
            if documents:
                rows = self._counted(documents, counts[split])
                write_shard(self.folder / split / f"slice-{rank:05d}.arrow", rows, self.vocabulary.size)
        write_json(self.folder / "reports" / f"slice-{rank:05d}.json", {key: asdict(counts[key]) for key in counts})
        yield from ()

    def _tokenized(self, document: TroveDocument) -> TokenizedDocument:
        source = document.metadata["source"]
        starts = sentence_starts(document.text, self.config.sources[source].language)
        return encode(self.vocabulary.tokenizer, document.text, starts, source)

    def _counted(self, documents: Sequence[TokenizedDocument], counts: Counts) -> Iterator[PackedRow]:
        capacity = self.config.row_length - 2
        for document in documents:
            sizes = [len(sentence) for sentence in sentences_of(document)]
            counts.documents += 1
            counts.sentences += len(sizes)
            counts.tokens += sum(sizes)
            counts.cut_sentences += sum(size > capacity for size in sizes)
        for row in pack(documents, self.config.row_length, self.vocabulary.special, self.config.packing):
            counts.rows += 1
            counts.separators += len(row.document_starts) - 1
            yield row


class QuietExecutor(LocalPipelineExecutor):
    """datatrove's local executor on a pool that notices a killed worker, with a progress bar instead of a log."""

    def run(self) -> None:
        """Runs every task that is not completed; raises DataError when a worker is killed."""
        ranks = self.get_incomplete_ranks()
        shown = {"desc": "prepare", "unit": "slice", "total": self.tasks, "initial": self.tasks - len(ranks)}
        if self.workers == 1:
            for rank in tqdm(ranks, **shown):
                self._run_for_rank(rank)
            return
        context = multiprocessing.get_context("forkserver")
        options = {"mp_context": context, "initializer": end_with_parent, "initargs": (signal.SIGKILL,)}
        try:
            with ProcessPoolExecutor(self.workers, **options) as pool:
                for _ in tqdm(pool.map(self._run_for_rank, ranks), **shown):
                    pass
        except BrokenProcessPool:
            raise DataError(
                "a worker was killed, perhaps for want of memory: run the same command again with fewer num_workers; "
                "finished slices are kept"
            ) from None

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> PipelineStats:
        logger.disable("datatrove")
        return super()._run_for_rank(rank, local_rank, node_rank)


def prepare_rows(config: PrepareConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """Writes the folder of rows that `config` asks for and returns its manifest.

    The same inputs find the folder as it is; a killed run goes on with the slices that it had not finished. Raises
    DataError when the folder holds something else, when there is no text, or when no document was held out.
    """
    output = Path(config.output)
    plan = _plan(config, vocabulary)
    if output.exists():
        return _finished(output, plan)
    slices = tuple(plan_slices(config.sources, config.slice_bytes))
    if not slices:
        raise DataError("the sources hold no text: every file is empty")
    partial = partial_of(output)
    _open_partial(partial, plan)
    started = time.monotonic()
    steps: Steps = [ReadSlice(config.sources, slices, partial), PackSlice(config, vocabulary, partial)]
    logger.disable("datatrove")
    workers = min(config.num_workers, len(slices))
    QuietExecutor(steps, tasks=len(slices), workers=workers, logging_dir=str(partial / "work")).run()
    report = _merged(partial, config.row_length, time.monotonic() - started)
    _refuse_empty(report, partial)
    for name in ("reports", "work"):
        shutil.rmtree(partial / name)
    for leftover in (partial / "plan.json", *partial.rglob(f"*{PARTIAL}")):
        leftover.unlink()
    about = {"format": FORMAT, "kind": "rows", "row_length": config.row_length, "plan": plan, "report": report}
    seal(partial, output, about)
    return _finished(output, plan)


def _plan(config: PrepareConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns all that the rows depend on: the settings, the tokenizer and every source file by its hash."""
    settings = {key: value for key, value in asdict(config).items() if key not in ("output", "num_workers", "sources")}
    sources = [
        {**asdict(source), "files": [{"path": str(path), "sha256": sha256_of(path)} for path in files_of(source)]}
        for source in config.sources
    ]
    return json.loads(
        json.dumps({"settings": settings, "sources": sources, "tokenizer_fingerprint": vocabulary.fingerprint})
    )


def _finished(output: Path, plan: dict[str, Any]) -> dict[str, Any]:
    manifest = read_manifest(output)
    if manifest.get("plan") != plan:
        raise DataError(f"{output} was made from other text or settings: remove it or name another output")
    return manifest


def _open_partial(partial: Path, plan: dict[str, Any]) -> None:
    kept = partial / "plan.json"
    if partial.exists() and not (kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) == plan):
        shutil.rmtree(partial)
    for name in (*SPLITS, "set_aside", "reports", "work"):
        (partial / name).mkdir(parents=True, exist_ok=True)
    write_json(kept, plan)


def _merged(partial: Path, row_length: int, elapsed_seconds: float) -> dict[str, Any]:
    counts = {split: Counts() for split in SPLITS}
    for path in sorted((partial / "reports").glob("slice-*.json")):
        slice_counts = json.loads(path.read_text(encoding="utf-8"))
        for split in SPLITS:
            counts[split] += Counts(**slice_counts[split])
    report: dict[str, Any] = {}
    for split, count in counts.items():
        filled = count.tokens + count.separators + 2 * count.rows
        report[split] = {**asdict(count), "fill_rate": filled / max(1, count.rows * row_length)}
    set_aside = Counter(
        json.loads(line)["reason"]
        for path in (partial / "set_aside").glob("slice-*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    num_tokens = sum(count.tokens for count in counts.values())
    return {
        **report,
        "set_aside": dict(sorted(set_aside.items())),
        "elapsed_seconds": elapsed_seconds,
        "tokens_per_second": num_tokens / elapsed_seconds,
    }


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
