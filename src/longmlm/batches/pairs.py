"""Pairs of segments for next-sentence (NSP) and sentence-order prediction (SOP), drawn when a batch is made.

A row holds consecutive sentences of one document; each epoch draws another pair from it. Say rows have 17 tokens at
most, row 0 has sentences of 4 3 2 5 tokens, and row 1, of another document, of 5 and 3. The input is [CLS] A [SEP] B
[SEP]; with row 0 split after its second sentence, A and B are

    in order     4 3    2 5         label 0
    NSP, random  4 3    5           label 1: of row 1, the sentences that fit and are nearest to the 7 tokens of 2 5
    SOP, swapped 2 5    4 3         label 1

The labels are those of transformers: next_sentence_label is 1 if B is random, sentence_order_label is 1 if A and B are
swapped. A row of one sentence is no pair, and has no label; nor has, with SOP, one whose lengths would tell its order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from jaxtyping import Integer

from longmlm.data.row import LooseRows, Row, SpecialTokens, Stream, philox_at
from longmlm.data.rows import Rows
from longmlm.settings.masking import PairKind

NO_PAIR = -100  # the label that transformers ignores
IN_ORDER, NEGATIVE = 0, 1
NUM_PARTNERS, TOLERANCE = 10, 0.1
DOCUMENT_COLUMNS = ("document_starts", "document_sources", "document_hashes")


@dataclass(frozen=True, slots=True)
class PairedRow(Row):
    """A row as a pair: its label, and where its second segment starts (at the row's length if there is none)."""

    second_start: int = field(kw_only=True)
    label: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Pairing:
    """How rows become pairs."""

    kind: PairKind
    special: SpecialTokens

    def pair(self, rows: Rows | LooseRows, row_id: int, seed: int, epoch: int) -> PairedRow:
        """Returns a pair made from a row: a function of the rows of a split, of seed, epoch and row.

        Half of the rows with several sentences become negatives. With NSP, such a row stays in order if none of ten
        rows drawn at random is from another document.
        """
        row, special = rows[row_id], self.special
        starts = _sentence_starts(row)
        borders = _fair_borders(row, rows, row_id) if self.kind == "sop" else starts[1:]
        if not len(borders):
            return PairedRow(**_columns(row), second_start=len(row), label=NO_PAIR)
        split, coin, start = _random_integers(Stream.PAIRS, seed, row_id, epoch, 3)
        border = int(borders[split % len(borders)])
        first, second = row.window(1, border, special), row.window(border, len(row) - 1, special)
        if coin % 2 and self.kind == "sop":
            return _joined(second, first, NEGATIVE)
        if coin % 2:
            drawn = _random_integers(Stream.PARTNERS, seed, row_id, epoch, NUM_PARTNERS)
            partners = (other for number in drawn if _is_partner(other := rows[number % len(rows)], row))
            if other := _random_second(partners, start, second, rows.row_length - len(first) - 1, special):
                return _joined(first, other, NEGATIVE)
        return _joined(first, second, IN_ORDER)


def _fair_borders(row: Row, rows: Rows | LooseRows, row_id: int) -> Integer[np.ndarray, " borders"]:
    """Returns where B may begin in a row for SOP so that lengths do not tell which segment is the first one.

    Most rows begin with a sentence for which the row before had no room, and such sentences are longer than others: so
    B begins with one too. Where a row begins with a sentence that would have had room, B does likewise.
    """
    starts, before = _sentence_starts(row), rows[row_id - 1] if row_id else None
    if before is None or _document(before) != _document(row):
        return starts[1:]
    room = rows.row_length - 1 - len(before)  # with the separator between A and B
    is_longer = np.diff(np.append(starts, len(row) - 1)) > room
    return starts[1:][is_longer[1:] == is_longer[0]]


def _is_partner(other: Row, row: Row) -> bool:
    """Returns whether a row is of another document and has several sentences.

    A row of one sentence may be a part of a long one.
    """
    return _document(other) != _document(row) and len(_sentence_starts(other)) > 1


def _random_second(partners: Iterator[Row], drawn: int, second: Row, room: int, special: SpecialTokens) -> Row | None:
    """Returns the segment that is nearest to `second` in length, one from each partner; None if there is no partner.

    The first that differs by at most a tenth is taken. With a single partner, whose sentences may all be longer, the
    label would follow from the length of B.
    """
    length, nearest, least = len(second) - 2, None, math.inf
    for other in partners:
        begin, end = _random_segment(other, drawn, length, room)
        if (difference := abs(end - begin - length)) < least:
            nearest, least = (other, begin, end), difference
        if difference <= TOLERANCE * length:
            break
    return nearest and nearest[0].window(*nearest[1:], special)


def _random_segment(other: Row, drawn: int, length: int, room: int) -> tuple[int, int]:
    """Returns where a random B begins and ends in a row: whole sentences, as near to `length` tokens as possible.

    Otherwise the label would follow from the last token of B. Only a first sentence of more than `room` tokens is cut.
    """
    starts, last = _sentence_starts(other), len(other) - 1
    fitting = starts[starts + length <= last]
    begin = int(fitting[drawn % len(fitting)]) if len(fitting) else int(starts[0])
    ends = np.append(starts[1:], last)
    ends = ends[(begin < ends) & (ends <= begin + room)]
    return begin, int(ends[np.abs(ends - begin - length).argmin()]) if len(ends) else begin + room


def _joined(first: Row, second: Row, label: int) -> PairedRow:
    """Returns both rows as one, with a single separator between them."""
    shift, joined, others = len(first) - 1, _columns(first), _columns(second)
    is_one_document = _document(first) == _document(second)
    for name, own in joined.items():
        if own is None:
            continue
        other = others[name] + shift if name.endswith("_starts") else others[name]
        if name in DOCUMENT_COLUMNS:
            other = other[:0] if is_one_document else other  # a document that goes on does not start again
        elif not name.endswith("_starts"):
            other = other[1:]  # of its tokens, all but [CLS]
        joined[name] = np.concatenate([own, other])
    return PairedRow(**joined, second_start=len(first), label=label)


def _columns(row: Row) -> dict[str, Any]:  # Any: arrays of several types, or None
    return {item.name: getattr(row, item.name) for item in fields(Row)}


def _document(row: Row) -> int:
    assert row.document_hashes is not None
    return int(row.document_hashes[0])


def _sentence_starts(row: Row) -> Integer[np.ndarray, " sentences"]:
    assert row.sentence_starts is not None
    return row.sentence_starts


def _random_integers(stream: Stream, seed: int, row_id: int, epoch: int, count: int) -> list[int]:
    """Returns random numbers of 53 bits."""
    return [int(word) >> 11 for word in philox_at(stream, (seed, row_id), epoch).random_raw(count)]
