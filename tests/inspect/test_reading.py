"""The pieces of a row are its text, and show what masking does to each token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longmlm.artifacts.rows import SourceRecord
from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.data.row import Row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import decode, load_vocabulary
from longmlm.errors import counted
from longmlm.evaluation.frozen import viewer_of
from longmlm.inspect.reading import DocumentPart, Piece, Reader
from longmlm.settings.masking import Masking
from tests.support.tiny import tiny_folder

TEXT = "The Han river rose. It fell again in autumn, when 天下大势 was read."


def unmasked(row: Row) -> MaskedRow:
    nothing = np.zeros(0, dtype=np.int64)
    return MaskedRow(row, nothing, nothing)


def text_of(part: DocumentPart) -> str:
    return "".join(piece.space + piece.text for piece in part.pieces)


def test_pieces_are_the_text_of_each_document(rows: Rows, reader: Reader, vocabulary) -> None:
    for number in range(20):
        row = rows[number]
        parts = reader.read("", unmasked(row)).parts
        assert [(part.first, part.source) for part in parts] == [(start, "novels") for start in row.document_starts]
        for part in parts:
            text = decode(vocabulary, row.input_ids[part.first : part.last + 1])
            assert text_of(part) == text.lstrip()
            assert len(text) > 1


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=3))
def test_any_text_is_shown_and_no_character_is_cut(texts: list[str], row, reader: Reader, vocabulary) -> None:
    packed = row(*texts)
    masked = mask_row(
        packed, vocabulary.maskable, Masking(selected_fraction=0.5, masked_share=0.0, random_share=0.0), 1, 0, 0
    )
    shown = {part.first: text_of(part) for part in reader.read("", unmasked(packed)).parts}
    for start, text in zip(packed.document_starts.tolist(), texts, strict=True):
        assert shown[start].split() == text.split() or "\ufffd" in text
    kept = reader.read("", masked)
    pieces = [piece for part in kept.parts for piece in part.pieces]
    assert {piece.outcome for piece in pieces} <= {"plain", "unchanged"}
    assert any(piece.outcome == "unchanged" for piece in pieces) == bool(kept.selected)


def test_wordpieces_and_characters_without_spaces_are_joined(tmp_path) -> None:
    vocabulary = load_vocabulary(str(tiny_folder(tmp_path, "bert", 0)))
    ids = vocabulary.tokenizer.encode(TEXT, add_special_tokens=False).ids
    row = Row(np.array([vocabulary.special.cls, *ids, vocabulary.special.sep]), np.array([1]), np.array([0]))
    [part] = Reader(vocabulary, (SourceRecord(name="novels"),)).read("", unmasked(row)).parts
    assert text_of(part) == decode(vocabulary, row.input_ids[1:-1])
    assert len(part.pieces) == len(ids)


def test_masking_shows_at_the_selected_tokens_alone(rows: Rows, reader: Reader, vocabulary) -> None:
    masking, found = Masking(selected_fraction=0.4, masked_share=0.5, random_share=0.3), set()
    for number in range(10):
        masked = mask_row(rows[number], vocabulary.maskable, masking, 7, 2, number)
        reading = reader.read("", masked)
        assert [token.position for token in reading.selected] == masked.selected.tolist()
        for token, label in zip(reading.selected, masked.labels, strict=True):
            seen = masked.row.input_ids[token.position]
            expected = "masked" if seen == vocabulary.special.mask else "unchanged" if seen == label else "random"
            assert token.outcome == expected
            assert bool(token.shown) == (expected == "random")
            found.add(expected)
        pieces = {piece.position: piece for part in reading.parts for piece in part.pieces if piece.outcome != "plain"}
        whole = [token for token in reading.selected if token.position in pieces]
        assert len(whole) > 0.8 * len(reading.selected)  # the others share a character with another token
        assert all(pieces[token.position].outcome == token.outcome for token in whole)
        shares = [
            f"{count} {outcome}" for outcome in ("masked", "random", "unchanged") if (count := _count(reading, outcome))
        ]
        assert reading.summary == f"{counted(len(reading.selected), 'token')} selected ({', '.join(shares)})"
    assert found == {"masked", "random", "unchanged"}


def _count(reading, outcome: str) -> int:
    return sum(token.outcome == outcome for token in reading.selected)


def test_selected_white_space_is_shown_as_a_symbol_and_still_ends_the_line(row, reader: Reader, vocabulary) -> None:
    packed = row("one\ntwo")
    [position] = np.flatnonzero(packed.input_ids == vocabulary.tokenizer.encode("\n", add_special_tokens=False).ids)
    seen = packed.input_ids.copy()
    seen[position] = vocabulary.special.mask
    masked = MaskedRow(packed.with_input_ids(seen), np.array([position]), packed.input_ids[[position]])
    [part] = reader.read("", masked).parts
    assert text_of(part) == "one↵\ntwo"
    assert [piece.text for piece in part.pieces if piece.outcome == "masked"] == ["↵"]


def test_sentences_and_words_are_marked_where_the_row_knows_them(row, reader: Reader) -> None:
    plain = row("One two", "Three")
    second = int(plain.document_starts[1])
    words = np.zeros(len(plain), dtype=bool)
    words[[1, 2, second]] = True
    known = replace(plain, sentence_starts=np.array([1, 3, second]), is_word_start=words)
    one, three = reader.read("", unmasked(known)).parts
    opens = {piece.position: piece.opens for piece in (*one.pieces, *three.pieces)}
    assert opens[3] == "sentence"
    assert opens[2] == "word"  # within "One", so not after white space
    assert opens[1] == opens[second] == ""  # the border of the document shows it
    assert {piece.opens for part in reader.read("", unmasked(plain)).parts for piece in part.pieces} == {""}


@pytest.mark.parametrize("view", ["cut", "chunks"])
def test_views_have_the_positions_and_the_text_of_the_row(row, reader: Reader, vocabulary, view: str) -> None:
    packed, base_positions = row("One two three", "four, five and six", "x", "seven eight nine, ten"), 9
    masked = mask_row(packed, vocabulary.maskable, Masking(selected_fraction=0.5), 7, 0, 0)
    whole = {token.position: token for token in reader.read("", masked).selected}
    seen: dict[int, Piece] = {}
    for index, (shown, positions) in enumerate(viewer_of(view, base_positions, vocabulary.special)(masked)):
        reading = reader.read("", shown, index * (base_positions - 2))
        assert [token.position for token in reading.selected] == positions.tolist()
        seen |= {token.position: token for token in reading.selected}
        texts = [text_of(part) for part in reading.parts]
        assert all(texts) and not any("</s>" in text for text in texts)
    expected = whole if view == "chunks" else {key: one for key, one in whole.items() if key < base_positions - 1}
    assert seen.keys() == expected.keys()
    assert [one.outcome for one in seen.values()] == [one.outcome for one in expected.values()]
