"""Signatures of texts, by which near copies are found: MinHash over five consecutive words.

"The cat sat on the mat again" has three such 5-grams: the cat sat on the | cat sat on the mat | sat on the mat again.
Each of 112 functions gives the minimum hash of a text's 5-grams. Two texts that share a fraction s of all their 5-grams
have the same minimum hash with probability s, and all 8 of at least one of 14 bands with probability 1 - (1 - s^8)^14:

    words changed    1 %     2 %     5 %     10 %
    s                .91     .82     .63     .42
    found           1.00     .97     .30     .01

A word is a run of letters, marks and digits in any case; in scripts without spaces, each character is a word.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8, UInt32, UInt64
from rensa import RMinHash

from longmlm.data.encoding import PIECE_CHARACTERS
from longmlm.data.vocabulary import UNSPACED

NUM_BANDS, BAND_LENGTH, NUM_WORDS = 14, 8, 5
CODE_BITS = 18  # of a character's code; no letter has more
FACTORS = np.cumprod(np.full(BAND_LENGTH, 0x9E3779B97F4A7C15, dtype=np.uint64))  # odd numbers without a pattern
NO_HASH = (1 << 32) - 1


def band_hashes(texts: Sequence[str], hashes: UInt64[np.ndarray, " texts"]) -> UInt64[np.ndarray, "texts bands"]:
    """Returns a hash of each band of each text; for a text of fewer than five words, the hash that is given for it.

    Several texts have at most PIECE_CHARACTERS together. A single text that is longer is hashed in pieces.
    """
    cuts = range(0, len(texts[0]) or 1, PIECE_CHARACTERS) if len(texts) == 1 else (0,)
    pieces = ([text[cut : cut + PIECE_CHARACTERS] for text in texts] for cut in cuts)
    minima = functools.reduce(np.minimum, map(_min_hashes, pieces))
    bands = minima.reshape(len(texts), NUM_BANDS, BAND_LENGTH) * FACTORS
    return np.where((minima == NO_HASH).all(axis=1, keepdims=True), hashes[:, None], bands.sum(axis=2))


def _min_hashes(texts: Sequence[str]) -> UInt32[np.ndarray, "texts functions"]:
    """Returns the minimum hashes of each text; NO_HASH for one without a 5-gram."""
    texts = [text.lower() for text in texts]
    codes = np.frombuffer("\n".join(["", *texts]).encode("utf-32-le"), dtype=np.uint32)
    kinds = _kinds().take(codes, mode="clip")
    begins = (kinds[1:] == 1) | (kinds[1:] > kinds[:-1])
    is_letter = kinds[1:] > 0
    letters, starts = codes[1:][is_letter], np.flatnonzero(begins[is_letter])
    positions = np.arange(len(letters)) - np.repeat(starts, np.diff(starts, append=len(letters)))
    words = np.add.reduceat(_mixed(letters + (positions << CODE_BITS).astype(np.uint64)), starts)
    num_grams = max(0, len(words) - NUM_WORDS + 1)
    grams = np.sum([words[number : number + num_grams] * FACTORS[number] for number in range(NUM_WORDS)], axis=0)
    ends = np.cumsum([len(text) + 1 for text in texts])
    text_of_word = np.searchsorted(ends, np.flatnonzero(begins), side="right")
    first, last = text_of_word[:num_grams], text_of_word[NUM_WORDS - 1 :]
    borders = np.searchsorted(first[first == last], np.arange(len(texts) + 1))
    grams = _mixed(grams[first == last])
    rows = RMinHash.digest_matrix_from_flat_token_hashes(grams, borders, NUM_BANDS * BAND_LENGTH, seed=0).to_rows()
    return np.array(rows, dtype=np.uint32)


@functools.cache
def _kinds() -> UInt8[np.ndarray, " characters"]:
    """Returns for each character whether it is a word (1), a part of one (2) or neither (0)."""
    characters, unspaced = map(chr, range(1 << CODE_BITS)), re.compile(f"[{UNSPACED}]")
    kinds = (0 if unicodedata.category(one)[0] not in "LMN" else 1 if unspaced.match(one) else 2 for one in characters)
    return np.fromiter(kinds, dtype=np.uint8)


def _mixed(numbers: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Returns the numbers mixed by the finalizer of SplitMix64: each bit depends on all bits of the given number."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
