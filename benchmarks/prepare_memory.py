"""Peak memory and speed of packing a large corpus and single huge documents: prepare compared with datasets.map.

Both run in one process. Each further worker of prepare takes as much again.

    python benchmarks/prepare_memory.py [--quick]
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from paired import Comparison, options, print_results
from prepare import comparison

from longmlm.data.corpus import Document, plan_slices, read_slice
from longmlm.settings.prepare import Source

TEXT = "src/longmlm/bundled/text/scratch.jsonl.zst"
MEGABYTE = 1_000_000


def english(seed: int) -> Iterator[str]:
    """Yields paragraphs of the bundled text in random order, endlessly."""
    sources = [Source(files=(TEXT,))]
    records = (record for spans in plan_slices(sources, 1 << 30) for record in read_slice(spans, sources))
    texts = [record.text for record in records if isinstance(record, Document)]
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
    """Writes one document as a JSON line."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"text": "')
        while file.tell() < num_bytes:
            file.write(json.dumps("".join(f"{next(paragraphs)}\n" for _ in range(200)), ensure_ascii=False)[1:-1])
        file.write('"}\n')


def write_corpus(path: Path, paragraphs: Iterator[str], num_bytes: int) -> None:
    """Writes JSON lines, each a document of one to a hundred paragraphs."""
    generator = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            text = "\n\n".join(next(paragraphs) for _ in range(generator.integers(1, 101)))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def comparisons(folder: Path, corpus_megabytes: int, document_megabytes: int) -> list[Comparison]:
    """Writes the texts and returns the comparisons: a corpus, then huge documents.

    A small corpus is packed with each huge document, so that both splits have other documents.
    """
    corpus, small = folder / f"{corpus_megabytes}.jsonl", folder / f"{corpus_megabytes}-small.jsonl"
    write_corpus(corpus, english(0), corpus_megabytes * MEGABYTE)
    write_corpus(small, english(1), MEGABYTE)
    shape = f"a corpus of {corpus_megabytes} MB, documents of 1 to 100 paragraphs"
    found = [comparison(shape, (Source(files=(str(corpus),)),), memory_aim=1)]
    for language, paragraphs in (("en", english), ("zh", chinese)):
        document = folder / f"{document_megabytes}-{language}.jsonl"
        write_document(document, paragraphs(2), document_megabytes * MEGABYTE)
        sources = (Source(files=(str(small),)), Source(files=(str(document),), language=language))
        found.append(comparison(f"one document of {document_megabytes} MB, language {language}", sources, memory_aim=1))
    return found


if __name__ == "__main__":
    is_quick, num_rounds = options(__doc__ or "")
    sizes = (2, 1) if is_quick else (40, 20)
    with tempfile.TemporaryDirectory() as folder:
        print_results("memory of prepare", [one.measure(num_rounds) for one in comparisons(Path(folder), *sizes)])
