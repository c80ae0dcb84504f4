"""Peak memory of each prepare worker, and speed: for a corpus of many documents and for single huge documents.

python benchmarks/prepare_memory.py [MEGABYTES OF THE CORPUS] [MEGABYTES OF A DOCUMENT], by default 200 and 200.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longmlm.data.corpus import Document, plan_slices, read_slice
from longmlm.data.rows import read_rows_manifest
from longmlm.data.texts import pieces_of
from longmlm.settings.prepare import Source

TEXT, TOKENIZER = "src/longmlm/bundled/text/scratch.jsonl.zst", "src/longmlm/bundled/roberta-mini"
LENGTH, NUM_WORKERS = 512, 2
MEGABYTE = 1_000_000


def english(seed: int) -> Iterator[str]:
    """Yields paragraphs of the bundled text in random order, endlessly."""
    sources = [Source(files=(TEXT,))]
    records = (record for spans in plan_slices(sources, 1 << 30) for record in read_slice(spans, sources))
    texts = ["".join(pieces_of(record.text)) for record in records if isinstance(record, Document)]
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph.strip()]
    generator = np.random.default_rng(seed)
    while True:
        yield paragraphs[generator.integers(len(paragraphs))]


def chinese(seed: int) -> Iterator[str]:
    """Yields paragraphs of random characters with Chinese punctuation, endlessly."""
    generator = np.random.default_rng(seed)
    while True:
        lengths = generator.integers(5, 40, size=8)
        sentences = ("".join(map(chr, generator.integers(0x4E00, 0x5600, size=length))) for length in lengths)
        yield "".join(f"{sentence[:9]}，{sentence[9:]}。" for sentence in sentences)


def write_document(path: Path, paragraphs: Iterator[str], num_bytes: int) -> None:
    """Writes one document, as a JSON line or as plain text."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"text": "' * (path.suffix == ".jsonl"))
        while file.tell() < num_bytes:
            joined = "".join(f"{next(paragraphs)}\n" for _ in range(200))
            file.write(json.dumps(joined, ensure_ascii=False)[1:-1] if path.suffix == ".jsonl" else joined)
        file.write('"}\n' * (path.suffix == ".jsonl"))


def write_corpus(path: Path, paragraphs: Iterator[str], num_bytes: int) -> None:
    """Writes JSON lines, each a document of one to a hundred paragraphs."""
    generator = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            text = "\n\n".join(next(paragraphs) for _ in range(generator.integers(1, 101)))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def measure(path: Path, language: str) -> None:
    """Prints tokens/s and peak memory of the stage's processes, started as a user would."""
    output, small = path.with_name(f"{path.name}-rows"), path.with_name("small.jsonl")
    write_corpus(small, english(1), 20_000_000)  # so that both splits have documents
    settings = path.with_suffix(".toml")
    settings.write_text(
        f'output = "{output}"\n[runtime]\nnum_workers = {NUM_WORKERS}\n'
        f'[recipe]\ntokenizer = "{TOKENIZER}"\nrow_length = {LENGTH}\n[[recipe.sources]]\nfiles = ["{small}"]\n'
        f'[[recipe.sources]]\nfiles = ["{path}"]\nlanguage = "{language}"\n'
    )
    command = [sys.executable, "-m", "longmlm", "prepare", str(settings)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in (process.pid, *_descendants(process.pid)):
            peaks[pid] = max(peaks.get(pid, 0), _peak_kilobytes(pid))
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with code {process.returncode}")
    report = read_rows_manifest(output).report
    own, workers = peaks.pop(process.pid), sorted(peaks.values())[-NUM_WORKERS:]
    print(
        f"{path.name:24}{path.stat().st_size / MEGABYTE:>8,.0f} MB {report.tokens_per_second:>10,.0f} tokens/s"
        f"  peak MB: workers {', '.join(f'{peak / 1e3:,.0f}' for peak in workers)}, main process {own / 1e3:,.0f}",
        flush=True,
    )


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _peak_kilobytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    corpus_bytes, document_bytes = (int(size) * MEGABYTE for size in (*sys.argv[1:], 200, 200)[:2])
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_corpus(corpus, english(0), corpus_bytes)
        measure(corpus, "en")
        corpus.unlink()
        for language, paragraphs in (("en", english), ("zh", chinese)):
            for suffix in (".jsonl", ".txt"):
                document = Path(folder) / f"document-{language}{suffix}"
                write_document(document, paragraphs(2), document_bytes)
                measure(document, language)
                document.unlink()
