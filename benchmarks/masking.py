"""Dynamic masking of rows of up to 1536 tokens of text: longmlm's, whose masks depend only on seed, epoch and row.

First batches of 16 rows, with tokens and with whole words selected, beside transformers' collator, which is given where
words start and has no spans; then masks alone, by unit. All in tokens per second of processor time; `aims` in the last
line has the speed that each unit should reach alone on one core. Rows of Chinese, for example:

    python benchmarks/masking.py --tokenizer FOLDER --text FILE.jsonl --language zh

python benchmarks/masking.py [--quick] [--tokenizer NAME] [--text FILE.jsonl] [--language CODE]
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
from paired import Comparison, Way, options, print_results
from prepare import MODEL, TEXT, cpu_rate
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longmlm.batches.collate import collate
from longmlm.batches.masking import mask_row
from longmlm.data.corpus import Document
from longmlm.data.encoding import tokenized
from longmlm.data.packing import TokenizedDocument, pack
from longmlm.data.row import Row
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.settings.masking import Masking, MaskingUnit

ROW_LENGTH, NUM_ROWS, ROWS_PER_BATCH = 1536, 192, 16
NUM_MASKS, NUM_QUICK_MASKS = 3_840, 960
AIMS: dict[MaskingUnit, float] = {"token": 20e6, "word": 10e6, "span": 20e6}
WORD = "DataCollatorForLanguageModeling, whole_word_mask"
Text = tuple[str, str, str]  # tokenizer, file and language


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


def batches(rows: tuple[Row, ...], num_masks: int) -> list[list[tuple[int, Row]]]:
    """Returns numbered rows, each of them again and again, in batches."""
    numbered = [*islice(cycle(enumerate(rows)), num_masks)]
    return [numbered[first : first + ROWS_PER_BATCH] for first in range(0, num_masks, ROWS_PER_BATCH)]


def ours(unit: MaskingUnit, num_masks: int, text: Text, *, collated: bool) -> Callable[[], int]:
    """Returns a function that draws masks of the rows in turn, and returns their number of tokens."""
    vocabulary, rows = prepared(*text)
    maskable, masking, work_list = vocabulary.maskable_in(unit), Masking(unit=unit), batches(rows, num_masks)

    def work() -> int:
        for epoch, batch in enumerate(work_list):
            masked = [mask_row(row, maskable, masking, 0, epoch, row_id) for row_id, row in batch]
            if collated:
                collate(masked, vocabulary.special.pad)
        return num_tokens(work_list)

    return work


def num_tokens(work_list: list[list[tuple[int, Row]]]) -> int:
    """Returns the tokens of all rows."""
    return sum(len(row) for batch in work_list for _, row in batch)


def theirs(unit: MaskingUnit, num_masks: int, text: Text) -> Callable[[], int]:
    """Returns a function that does the same with transformers' collator, which is given where words start."""
    vocabulary, rows = prepared(*text)
    tokenizer: Any = AutoTokenizer.from_pretrained(text[0])
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    if unit == "word":  # for which it can only show the mask token
        collator = replace(collator, whole_word_mask=True, mask_replace_prob=1.0, random_replace_prob=0.0)
    features = [_feature(row, vocabulary, unit) for row in rows]
    work_list = batches(rows, num_masks)

    def work() -> int:
        for batch in work_list:
            collator([features[row_id] for row_id, _ in batch])
        return num_tokens(work_list)

    return work


def _feature(row: Row, vocabulary: Vocabulary, unit: MaskingUnit) -> dict[str, list[Any]]:
    """Returns a padded row with all that spares the collator work; it finds words by the gaps before them."""
    maskable = vocabulary.maskable_in("word")
    assert maskable.words is not None
    padding = [0, ROW_LENGTH - len(row)]
    ends = np.arange(len(row)) + np.cumsum(maskable.words.starts(row.input_ids)) + 1
    columns = {
        "input_ids": np.pad(row.input_ids, padding, constant_values=vocabulary.special.pad),
        "attention_mask": np.pad(np.ones(len(row), int), padding),
        "special_tokens_mask": np.pad(~maskable.is_maskable[row.input_ids], padding, constant_values=True),
    }
    if unit == "word":
        columns["offset_mapping"] = np.pad(np.stack([ends - 1, ends], axis=1), [padding, [0, 0]])
    return {name: column.tolist() for name, column in columns.items()}


def main() -> None:
    """Measures batches and masks, each in processes of its own."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, default in (("--tokenizer", MODEL), ("--text", TEXT), ("--language", "en")):
        parser.add_argument(name, default=default)
    given, sys.argv[1:] = parser.parse_known_args()
    is_quick, num_rounds = options(__doc__ or "")
    text = (given.tokenizer, given.text, given.language)
    num_masks = NUM_QUICK_MASKS if is_quick else NUM_MASKS
    size = f"{num_masks:,} masks of rows of up to {ROW_LENGTH:,} tokens of {Path(given.text).name}"
    peers: dict[MaskingUnit, str] = {"token": "DataCollatorForLanguageModeling", "word": WORD}
    results = []
    for unit, name in peers.items():
        own = Way("longmlm", partial(ours, unit, num_masks, text, collated=True), cpu_rate)
        peer = Way(name, partial(theirs, unit, num_masks, text), cpu_rate)
        shape = f"{unit}, {size} in batches of {ROWS_PER_BATCH}"
        results.append(Comparison(shape, own, peer, aim=5).measure(num_rounds))
    for unit in get_args(MaskingUnit):
        alone = Way("longmlm", partial(ours, unit, num_masks, text, collated=False), cpu_rate)
        results.append(Comparison(f"{unit}, {size}, masks alone", alone, None).measure(num_rounds))
        print(f"  {results[-1].ours / AIMS[unit]:.0%} of the aim of {AIMS[unit] / 1e6:.0f} million")
    print_results("masking", results, aims=AIMS)


if __name__ == "__main__":
    main()
