"""Signatures of documents: copies have a hash of a band in common, other documents have none."""

import json
import random
import re
from collections.abc import Sequence

import numpy as np
import pytest

from longmlm.data.corpus import text_hash
from longmlm.data.encoding import PIECE_CHARACTERS
from longmlm.data.signatures import band_hashes
from tests.data.conftest import CHINESE, DEMO


@pytest.fixture(scope="session")
def demo_texts() -> list[str]:
    """The documents of the demo corpus."""
    return [json.loads(line)["text"] for line in DEMO.read_text(encoding="utf-8").splitlines()]


def changed(text: str, share: float, random_numbers: random.Random) -> str:
    """Returns a text in which a share of the words are others."""
    words = text.split(" ")
    for number in random_numbers.sample(range(len(words)), round(share * len(words))):
        words[number] = random_numbers.choice(words)
    return " ".join(words)


def bands_of(texts: Sequence[str]) -> np.ndarray:
    """Returns the hashes of bands of texts, each by itself."""
    return np.concatenate([band_hashes([text], np.array([text_hash(text)], dtype=np.uint64)) for text in texts])


def are_near(one: str, other: str) -> bool:
    return bool((bands_of([one]) == bands_of([other])).any())


@pytest.mark.parametrize(("share", "lowest", "highest"), [(0.01, 59, 60), (0.02, 54, 60), (0.05, 12, 32), (0.1, 0, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_how_many_copies_are_found_depends_on_the_words_that_are_changed(
    demo_texts: list[str], share: float, lowest: int, highest: int, seed: int
) -> None:
    texts, random_numbers = [text[:12_000] for text in demo_texts[:60]], random.Random(seed)
    copies = [changed(text, share, random_numbers) for text in texts]
    num_found = (bands_of(texts) == bands_of(copies)).any(axis=1).sum()
    assert lowest <= num_found <= highest


def test_the_demo_corpus_has_no_families(demo_texts: list[str]) -> None:
    parts = [text[begin : begin + 2_000] for text in demo_texts for begin in (0, 2_000, 4_000)]
    bands = bands_of(parts)
    assert len(parts) > 400
    assert all(len(np.unique(band)) == len(parts) for band in bands.T)


def test_signatures_do_not_depend_on_the_texts_beside_them_or_on_the_version_of_a_library(
    demo_texts: list[str],
) -> None:
    """Other numbers would give other families: rows would not be the same any more."""
    texts = [*demo_texts[:5], "One.", "", CHINESE, "İstanbul is a word that becomes longer in small letters."]
    together = band_hashes(texts, np.array([text_hash(text) for text in texts], dtype=np.uint64))
    assert np.array_equal(together, bands_of(texts))
    known = bands_of(["The cat sat on the mat again."])[0, :3].tolist()
    assert known == [6290282583733957200, 14092346788489839527, 15214719027263367013]


def test_case_punctuation_and_white_space_make_no_difference_but_for_texts_of_a_few_words(
    demo_texts: list[str],
) -> None:
    text = demo_texts[0]
    assert are_near(text, re.sub(r"[^\w\s]", " ", text).upper().replace(" ", "\n\n"))
    assert are_near("One two three four five.", "one, two: three (four) FIVE")
    assert not are_near("One two three four.", "one two three four")
    assert are_near("***", "***") and not are_near("***", "---")


def test_scripts_without_spaces_are_compared_by_their_characters() -> None:
    text = CHINESE * 3
    copy = text[:400] + "海" + text[401:]
    assert are_near(text, copy) and not are_near(CHINESE, CHINESE[::-1])


def test_a_text_of_many_pieces_has_its_copies(demo_texts: list[str]) -> None:
    text = " ".join(demo_texts)
    assert len(text) > 5 * PIECE_CHARACTERS
    assert are_near(text, "A new title. " + changed(text, 0.01, random.Random(0)))
    assert not are_near(text, " ".join(demo_texts[:80]))
