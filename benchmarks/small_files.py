"""Time and memory of packing many small files, 10,000 to a million: both should grow linearly.

Files of about 700 bytes of the demo's text, packed by two workers. Memory is the peak of the main process, which knows
all files. `growth` in the JSON line is the exponent with which time and memory grow from each number of files to the
next: 1 is linear.

    python benchmarks/small_files.py [--quick]      # without --quick about 4 GB of disk and 20 minutes
"""

import json
import math
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from paired import in_a_process, options

from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.prepare import PrepareRecipe, Source

MODEL, TEXT = "src/longmlm/bundled/roberta-mini", "src/longmlm/bundled/text/demo.jsonl"
CHARACTERS, PER_FOLDER, SLICE_BYTES = 700, 1_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What packing so many files took."""

    num_files: int
    seconds: float
    gib: float


def write_files(folder: Path, num_files: int) -> None:
    """Writes files that are parts of the demo's text, each with its number."""
    with Path(TEXT).open(encoding="utf-8") as lines:
        text = "".join(json.loads(line)["text"] for line in lines)
    for number in range(num_files):
        parent = folder / f"{number // PER_FOLDER:04d}"
        if number % PER_FOLDER == 0:
            parent.mkdir()
        begin = number * CHARACTERS % (len(text) - CHARACTERS)
        (parent / f"{number:07d}.txt").write_text(f"{number}. {text[begin : begin + CHARACTERS]}", encoding="utf-8")


def cost(num_files: int) -> Cost:
    """Packs so many files; run it in a process of its own, whose peak of memory it reads."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        write_files(corpus, num_files)
        sources = (Source(files=(f"{corpus}/*/*.txt",)),)
        recipe = PrepareRecipe(tokenizer=MODEL, sources=sources, row_length=512, slice_bytes=SLICE_BYTES)
        vocabulary, started = load_vocabulary(MODEL), time.perf_counter()
        manifest = prepare_rows(recipe, vocabulary, Path(folder) / "rows", partial(run_slices, num_workers=2))
        seconds = time.perf_counter() - started
        assert manifest.report.train.documents + manifest.report.held_out.documents == num_files
    return Cost(num_files, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    """Measures, and prints the JSON line."""
    is_quick, _ = options(__doc__ or "", 1, 1)
    found = []
    for num_files in (2_000, 8_000) if is_quick else (10_000, 100_000, 1_000_000):
        found.append(in_a_process(cost, num_files))
        print(f"{num_files:,} files: {found[-1].seconds:,.1f} s, {found[-1].gib:.2f} GiB", flush=True)
    growth = [
        {
            name: math.log(getattr(more, name) / getattr(less, name)) / math.log(more.num_files / less.num_files)
            for name in ("seconds", "gib")
        }
        for less, more in pairwise(found)
    ]
    line = {"name": "small_files", "is_quick": "--quick" in sys.argv, "costs": [*map(asdict, found)], "growth": growth}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
