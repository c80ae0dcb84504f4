"""Text to rows: the prepare stage, with a fast encoder and with tokenizers, and datasets.map as in run_mlm.py.

run_mlm.py encodes every document, joins all ids and cuts them into equal blocks, across sentences. Each way has one
worker, and the figure is tokens per second of processor time, from the files to the saved rows. The rows of both
encoders are compared. Without --corpus, the text is that of the demo; the comparison of the
fast encoder with tokenizers, with which the first prepare with a tokenizer begins, is not in the figure.

    python benchmarks/prepare.py [--quick] [--corpus FILE.jsonl ... --tokenizer FOLDER [--language zh] [--length 1536]]
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars, load_dataset
from paired import Comparison, Way, in_a_process, options, print_results
from transformers import AutoTokenizer

from longmlm.artifacts.rows import RowsManifest
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.prepare import Encoder, PrepareRecipe, Source

MODEL, TEXT, LENGTH = "src/longmlm/bundled/roberta-mini", "src/longmlm/bundled/text/demo.jsonl", 512
AIMS = {"en": 5, "zh": 3}


def cpu_rate(work: Callable[[], float]) -> float:
    """Runs the work, which returns a number of tokens; returns tokens per second of processor time."""
    started = time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    amount = work()
    return amount / (time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started)


def prepared(sources: tuple[Source, ...], tokenizer: str, length: int, encoder: Encoder) -> Callable[[], RowsManifest]:
    """Returns a function that prepares rows, from the files to the sealed folder."""
    folder = tempfile.mkdtemp()
    recipe = PrepareRecipe(tokenizer=tokenizer, sources=sources, row_length=length, held_out_fraction=0.1)
    return partial(prepare_rows, recipe, load_vocabulary(tokenizer), Path(folder) / "rows", encoder=encoder)


def ours(sources: tuple[Source, ...], tokenizer: str, length: int, encoder: Encoder) -> Callable[[], int]:
    """Returns a function that prepares rows and returns their number of tokens."""
    work = prepared(sources, tokenizer, length, encoder)

    def tokens() -> int:
        report = work().report
        return report.train.tokens + report.held_out.tokens

    return tokens


def rows_sha256(sources: tuple[Source, ...], tokenizer: str, length: int, encoder: Encoder) -> str:
    """Prepares rows and returns the hash of all shards."""
    return prepared(sources, tokenizer, length, encoder)().sha256


def theirs(files: Sequence[str], model: str, length: int) -> Callable[[], int]:
    """Returns a function that loads, tokenizes, groups and saves with datasets."""
    disable_progress_bars()
    folder = tempfile.mkdtemp()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def tokenized(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": tokenizer(batch["text"], return_attention_mask=False, verbose=False)["input_ids"]}

    def grouped(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = list(chain.from_iterable(batch["input_ids"]))
        end = len(joined) // length * length
        return {"input_ids": [joined[begin : begin + length] for begin in range(0, end, length)]}

    def work() -> int:
        text = load_dataset("json", data_files=list(files), split="train", cache_dir=folder).select_columns(["text"])
        rows = text.map(tokenized, batched=True, remove_columns=["text"]).map(grouped, batched=True)
        rows.save_to_disk(str(Path(folder) / "rows"))
        return len(rows) * length

    return work


def comparison(
    shape: str,
    sources: tuple[Source, ...],
    memory_aim: float | None = None,
    encoder: Encoder = "auto",
    tokenizer: str = MODEL,
    length: int = LENGTH,
) -> Comparison:
    """Returns the comparison on these files of JSON lines."""
    files = [file for source in sources for file in source.files]
    name = "longmlm prepare" if encoder == "auto" else "longmlm prepare, encoder tokenizers"
    own = Way(name, partial(ours, sources, tokenizer, length, encoder), cpu_rate)
    peer = Way("datasets.map", partial(theirs, files, tokenizer, length), cpu_rate)
    aim = AIMS.get(sources[-1].language) if encoder == "auto" else 1
    return Comparison(shape, own, peer, aim=aim, memory_aim=memory_aim)


def main() -> None:
    """Compares the encoders' rows, then measures."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--corpus", nargs="+", default=[TEXT])
    parser.add_argument("--tokenizer", default=MODEL)
    parser.add_argument("--language", default="en")
    parser.add_argument("--length", type=int, default=LENGTH)
    given, sys.argv[1:] = parser.parse_known_args()
    _, num_rounds = options(__doc__ or "")
    sources = (Source(files=tuple(given.corpus), language=given.language),)
    megabytes = sum(Path(file).stat().st_size for file in given.corpus) / 1e6
    shape = f"{', '.join(Path(file).name for file in given.corpus)}, {megabytes:.0f} MB, {Path(given.tokenizer).name}"
    hashes = {
        in_a_process(rows_sha256, sources, given.tokenizer, given.length, encoder) for encoder in ("auto", "tokenizers")
    }
    both = [
        comparison(shape, sources, encoder=encoder, tokenizer=given.tokenizer, length=given.length)
        for encoder in ("auto", "tokenizers")
    ]
    print_results("prepare", [one.measure(num_rounds) for one in both], rows_are_equal=len(hashes) == 1)


if __name__ == "__main__":
    main()
