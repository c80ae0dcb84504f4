"""Masking by tokens, words and spans: million tokens per second of processor time, on rows of 1536 tokens of text.

The last line also has `aims`, the speed that each unit should reach on one core. Rows of Chinese, for example:

    python benchmarks/masking_units.py --tokenizer FOLDER --text FILE.jsonl --language zh

python benchmarks/masking_units.py [--quick] [--tokenizer NAME] [--text FILE.jsonl] [--language CODE]
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import get_args

from paired import Comparison, Way, options, print_results
from prepare import MODEL, TEXT, cpu_rate

from longmlm.batches.masking import mask_row
from longmlm.data.corpus import Document
from longmlm.data.encoding import tokenized
from longmlm.data.packing import TokenizedDocument, pack
from longmlm.data.row import Row
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.settings.masking import Masking, MaskingUnit

ROW_LENGTH, NUM_MASKS, NUM_QUICK_MASKS, NUM_ROWS = 1536, 20_000, 2_000, 200
AIMS: dict[MaskingUnit, float] = {"token": 20e6, "word": 10e6, "span": 20e6}


@cache
def prepared(tokenizer: str, text: str, language: str) -> tuple[Vocabulary, tuple[Row, ...]]:
    """Returns the vocabulary, and rows of the text."""
    vocabulary = load_vocabulary(tokenizer)

    def documents() -> Iterator[Document]:
        with Path(text).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                yield Document(json.loads(line)["text"], f"{text}, line {number}", 0)

    sentences = (TokenizedDocument(tokens, 0) for _, tokens in tokenized(vocabulary, [language], documents()))
    rows = pack(sentences, ROW_LENGTH, vocabulary.special, "full-sentences", vocabulary.is_within_character)
    return vocabulary, tuple(islice(rows, NUM_ROWS))


def masks(unit: MaskingUnit, num_masks: int, text: tuple[str, str, str]) -> Callable[[], int]:
    """Returns a function that draws masks of the rows in turn, and returns their number of tokens."""
    vocabulary, rows = prepared(*text)
    maskable, masking = vocabulary.maskable_in(unit), Masking(unit=unit)
    numbered = [*islice(cycle(enumerate(rows)), num_masks)]

    def work() -> int:
        for epoch, (row_id, row) in enumerate(numbered):
            mask_row(row, maskable, masking, 0, epoch, row_id)
        return sum(len(row) for _, row in numbered)

    return work


def main() -> None:
    """Measures every unit, each in processes of its own."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, default in (("--tokenizer", MODEL), ("--text", TEXT), ("--language", "en")):
        parser.add_argument(name, default=default)
    given, sys.argv[1:] = parser.parse_known_args()
    is_quick, num_rounds = options(__doc__ or "")
    text = (given.tokenizer, given.text, given.language)
    num_masks = NUM_QUICK_MASKS if is_quick else NUM_MASKS
    results = []
    for unit in get_args(MaskingUnit):
        way = Way(unit, partial(masks, unit, num_masks, text), cpu_rate)
        shape = f"{unit}: {num_masks:,} rows of {ROW_LENGTH} tokens of {Path(given.text).name}"
        results.append(Comparison(shape, way, None).measure(num_rounds))
        print(f"  {results[-1].ours / AIMS[unit]:.0%} of the aim of {AIMS[unit] / 1e6:.0f} million")
    print_results("masking units", results, aims=AIMS)


if __name__ == "__main__":
    main()
