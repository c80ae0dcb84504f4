"""Random bits: no two uses of Philox read the same ones, whatever seeds, rows, epochs and documents there are."""

import re
from pathlib import Path

import numpy as np
import pytest

import longmlm
from longmlm.batches import masking, pairs, sampling
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import Pairing
from longmlm.batches.sampling import global_batch, mixture_of
from longmlm.data import packing
from longmlm.data.packing import OpenRow, TokenizedDocument
from longmlm.data.row import LooseRows, Maskable, Row, SpecialTokens, Stream, TokenizedSentence, philox_at
from longmlm.settings.masking import Masking

SPECIAL = SpecialTokens(cls=1, sep=2, mask=4, pad=0, unk=3, all=(0, 1, 2, 3, 4))
SEED = 7


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Stream, tuple[int, ...], bytes]]:
    """The stream, the key and counter, and the first bits of each generator that is asked for."""
    found: list[tuple[Stream, tuple[int, ...], bytes]] = []

    def noted(stream: Stream, key: tuple[int, int], number: int = 0) -> np.random.Philox:
        state = philox_at(stream, key, number).state["state"]
        own = (*state["key"].tolist(), *state["counter"].tolist())
        bits = np.random.Philox(key=state["key"], counter=state["counter"]).random_raw(2)
        found.append((stream, own, bits.tobytes()))
        return philox_at(stream, key, number)

    for module in (masking, pairs, sampling, packing):
        monkeypatch.setattr(module, "philox_at", noted)
    return found


def use_every_stream() -> None:
    """Draws order, pairs, masks and short rows with one number as seed and hash of a document."""
    ids = np.array([1, *range(5, 17), 2])
    rows = LooseRows(
        tuple(
            Row(ids, np.array([1]), np.array([0]), np.array([document]), sentence_starts=np.array([1, 4, 9]))
            for document in range(5)
        )
    )
    words = Maskable(np.arange(20) > 4, np.arange(5, 20), 4)
    global_batch(0, 15, 5, SEED)
    mixed = mixture_of({"a": 2.0}, {"a": (3, 30), "b": (2, 20)})
    assert mixed is not None
    mixed.batch(0, 1_500, SEED)
    for epoch in range(3):
        for row_id in range(5):
            mask_row(rows[row_id], words, Masking(), SEED, epoch, row_id)
            for kind in ("nsp", "sop"):
                Pairing(kind, SPECIAL).pair(rows, row_id, SEED, epoch)
    document, sentence = TokenizedDocument([], 0, SEED), TokenizedSentence(np.arange(5, 9, dtype=np.uint32))
    row = OpenRow(4, SPECIAL, has_pairs=True, short_row_share=0.5)
    for number in range(5):
        row.add(sentence, 4, document, opens_document=not number)
        row.close()


def test_no_two_uses_read_the_same_bits(read: list[tuple[Stream, tuple[int, ...], bytes]]) -> None:
    use_every_stream()
    assert {stream for stream, *_ in read} == {*Stream}
    states, bits = {(stream, state) for stream, state, _ in read}, {(stream, words) for stream, _, words in read}
    assert len({state for _, state in states}) == len(states) == len(bits) == len({words for _, words in bits}) > 60


def test_a_generator_is_that_of_numpy_at_its_key_and_counter() -> None:
    for stream in Stream:
        expected = np.random.Philox(key=np.array([3, 2**63], np.uint64), counter=np.array([0, 0, stream, 9], np.uint64))
        assert philox_at(stream, (3, 2**63), 9).random_raw(9).tolist() == expected.random_raw(9).tolist()


def test_philox_is_used_through_its_streams_only() -> None:
    library = Path(longmlm.__file__).parent
    using = [path for path in library.rglob("*.py") if re.search(r"\bPhilox\(", path.read_text(encoding="utf-8"))]
    assert using == [library / "data" / "row.py"]
