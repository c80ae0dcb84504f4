"""Masking of a row for MLM: which tokens are selected, and what the model sees at their positions.

Of a row's n maskable tokens, k = max(1, round(fraction * n)) are selected:

- token: those with the k smallest random numbers.
- word: words in random order, each that still fits. With k = 4, words of 3 2 1 5 tokens in this order give 3 and 1.
  Fewer than k are selected only if no other word fits; if every word has more than k, the first k of the shortest.
- span: spans of 1 to 10 words, whose lengths have SpanBERT's distribution (Joshi et al. 2020: geometric, p = 0.2, of
  at most 10). They are placed at random on the words of the row, joined at its ends to a ring, so that each word is
  equally likely to be in one; they do not overlap, and may touch. Then spans are selected in random order; the last is
  cut at its end, so that exactly k tokens are selected. A span that crosses a special token or the ends of the row is
  two spans.

Each selected token, or each span, is shown as mask tokens, as random tokens or unchanged.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer, UInt64

from longmlm.data.row import Maskable, Row, Stream, philox_at
from longmlm.settings.masking import Masking

MAX_SPAN_WORDS, SPAN_END_PROBABILITY = 10, 0.2  # the probability with which a span ends after each word
SPAN_LENGTH_CDF = (1 - (1 - SPAN_END_PROBABILITY) ** np.arange(1, MAX_SPAN_WORDS)) / (
    1 - (1 - SPAN_END_PROBABILITY) ** MAX_SPAN_WORDS
)
MEAN_SPAN_WORDS = 3.797
SPARE_SPANS = 1.3  # spans that are placed for each that is expected to be selected


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row as the model sees it, the selected positions in increasing order, and the original tokens at them."""

    row: Row
    selected: Int64[np.ndarray, " selected"]
    labels: Integer[np.ndarray, " selected"]


def mask_row(row: Row, vocabulary: Maskable, masking: Masking, seed: int, epoch: int, row_id: int) -> MaskedRow:
    """Returns the row with round(fraction * maskable) positions selected, at least one if any is maskable.

    The mask depends on (seed, epoch, row_id) only. Each selected token, or each span of them, is shown as the mask
    token, as random tokens or unchanged, with the probabilities of `masking`.
    """
    pattern = epoch if masking.mask_patterns is None else epoch % masking.mask_patterns
    philox = philox_at(Stream.MASKS, (seed, row_id), pattern)
    seen = row.input_ids.astype(np.int64)
    maskable = vocabulary.is_maskable[seen].nonzero()[0]
    num_selected = min(len(maskable), max(1, round(masking.selected_fraction * len(maskable))))
    spans = None
    if masking.unit == "token" or not num_selected:
        selected = maskable[_smallest(philox.random_raw(len(maskable)), num_selected)]
    elif masking.unit == "word":
        selected = maskable[_select_words(_word_edges(row, seen, vocabulary, maskable), num_selected, philox)]
    else:
        chosen, opens_span = _select_spans(_word_edges(row, seen, vocabulary, maskable), num_selected, philox)
        selected = maskable[chosen]
        opens_span[0] = True  # also of a span that goes on from the end of the row
        opens_span[1:] |= selected[1:] - selected[:-1] > 1
        spans = opens_span.cumsum() - 1
    labels = seen[selected]

    num_shown = len(selected) if spans is None else int(spans[-1]) + 1
    uniform = _unit_interval(philox.random_raw(num_shown + len(selected)))
    shown_as = uniform[:num_shown] if spans is None else uniform[spans]
    drawn = vocabulary.drawable[(uniform[num_shown:] * len(vocabulary.drawable)).astype(np.int64)]
    is_masked = shown_as < masking.masked_share
    is_random = ~is_masked & (shown_as < masking.masked_share + masking.random_share)
    seen[selected] = np.where(is_masked, vocabulary.mask, np.where(is_random, drawn, labels))
    return MaskedRow(row.with_input_ids(seen), selected, labels)


def _smallest(words: UInt64[np.ndarray, " n"], count: int) -> Int64[np.ndarray, " count"]:
    """Returns the indices of the `count` smallest numbers in increasing order; of equal ones, the first ones."""
    if count:
        smallest = (words <= np.partition(words, count - 1)[count - 1]).nonzero()[0]
        if len(smallest) == count:
            return smallest
    return np.sort(np.argsort(words, kind="stable")[:count])


def _word_edges(
    row: Row, input_ids: Int64[np.ndarray, " tokens"], vocabulary: Maskable, maskable: Int64[np.ndarray, " maskable"]
) -> Int64[np.ndarray, " edges"]:
    """Returns at which of the maskable tokens each word starts, and their number."""
    is_edge = np.ones(len(maskable) + 1, dtype=bool)
    if row.is_word_start is None:
        assert vocabulary.words is not None  # Vocabulary.maskable_in has made it for this unit
        is_edge[1:-1] = vocabulary.words.starts(input_ids)[maskable[1:]]
    else:
        is_edge[1:-1] = row.is_word_start[maskable[1:]] | (maskable[1:] - maskable[:-1] > 1)  # after a special token
    return is_edge.nonzero()[0]


def _select_words(
    edges: Int64[np.ndarray, " edges"], num_selected: int, philox: np.random.Philox
) -> Int64[np.ndarray, " selected"]:
    """Returns the tokens of whole words, in increasing order."""
    sizes = edges[1:] - edges[:-1]
    keys = _distinct_keys(philox.random_raw(len(sizes)))
    for count in (min(num_selected, len(sizes)), len(sizes)):  # mostly, enough of the first words fit
        order = _order(keys, count)
        totals = sizes[order].cumsum()
        num_whole = int(totals.searchsorted(num_selected, side="right"))
        more: list[int] = []
        room = num_selected - (int(totals[num_whole - 1]) if num_whole else 0)
        for word in order[num_whole:]:
            if not room:
                break
            if (size := int(sizes[word])) <= room:
                more.append(word)
                room -= size
        if not room:
            break
    if not num_whole and not more:
        more = [int(order[np.argmin(sizes[order])])]
    words = np.sort(np.append(order[:num_whole], np.array(more, dtype=np.int64)))
    return _consecutive(edges[words], sizes[words])[:num_selected]


def _select_spans(
    edges: Int64[np.ndarray, " edges"], num_selected: int, philox: np.random.Philox
) -> tuple[Int64[np.ndarray, " selected"], Bool[np.ndarray, " selected"]]:
    """Returns the tokens of spans, in increasing order, and whether a span starts at each."""
    num_words, num_tokens = len(edges) - 1, int(edges[-1])
    ring = np.concatenate([edges[:-1], edges + num_tokens])  # the first token of each word, twice around
    num_spans = 4 + math.ceil(SPARE_SPANS * num_selected * num_words / num_tokens / MEAN_SPAN_WORDS)
    while True:  # until the spans have enough tokens, mostly at once
        uniform = _unit_interval(philox.random_raw(2 * num_spans + 1))
        lengths = span_lengths(uniform[:num_spans])
        ends = lengths.cumsum()
        if ends[-1] > num_words:
            ends = np.minimum(ends, num_words)
            lengths = np.diff(ends, prepend=0)
        gaps = (uniform[num_spans:-1] * (num_words - ends[-1] + 1)).astype(np.int64)  # words outside spans before each
        order = np.argsort(uniform[num_spans:-1], kind="stable")  # that of the gaps, and random where these are equal
        in_order = lengths[order]
        first_words = np.empty_like(gaps)
        first_words[order] = gaps[order] + in_order.cumsum() - in_order
        first_words += int(uniform[-1] * num_words)
        starts = ring[first_words]
        sizes = ring[first_words + lengths] - starts
        totals = sizes.cumsum()
        if totals[-1] >= num_selected:
            break
        num_spans *= 2
    num_spans = int(totals.searchsorted(num_selected)) + 1
    starts, sizes = starts[:num_spans], sizes[:num_spans]
    sizes[-1] -= totals[num_spans - 1] - num_selected
    is_selected, opens_span = np.zeros((2, num_tokens), dtype=bool)
    is_selected[_consecutive(starts, sizes) % num_tokens] = True
    opens_span[starts % num_tokens] = True
    return is_selected.nonzero()[0], opens_span[is_selected]


def span_lengths(uniform: Float64[np.ndarray, " spans"]) -> Int64[np.ndarray, " spans"]:
    """Returns the lengths of spans in words for numbers that are uniform between 0 and 1."""
    return 1 + SPAN_LENGTH_CDF.searchsorted(uniform, side="right")


def _consecutive(starts: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " tokens"]:
    """Returns all indices of runs with these starts and sizes, one run after the other."""
    ends = sizes.cumsum()
    return (starts - ends + sizes).repeat(sizes) + np.arange(ends[-1])


INDEX_MASK = np.uint64((1 << 24) - 1)  # the bits of a key that hold an index


def _distinct_keys(words: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Returns random numbers with their index as the last bits: all differ, so every sort gives the same order."""
    return (words & ~INDEX_MASK) | np.arange(len(words), dtype=np.uint64)


def _order(keys: UInt64[np.ndarray, " n"], count: int) -> Int64[np.ndarray, " count"]:
    """Returns the indices of the `count` smallest keys in increasing order of the keys."""
    smallest = np.sort(np.partition(keys, count - 1)[:count] if count < len(keys) else keys)
    return (smallest & INDEX_MASK).astype(np.int64)


def _unit_interval(words: UInt64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
