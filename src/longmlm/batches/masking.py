"""Masking of a row for MLM: which tokens are selected, and what the model sees at their positions.

Of a row's n maskable tokens, k = max(1, round(fraction * n)) are selected:

- token: those with the k smallest random numbers.
- word: words in random order, each that still fits. With k = 4, words of 3 2 1 5 tokens in this order give 3 and 1.
  Fewer than k are selected only if no other word fits; if every word has more than k, the shortest is selected.
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

from longmlm.data.row import Maskable, Row
from longmlm.settings.masking import Masking

MAX_SPAN_WORDS, SPAN_END = 10, 0.2  # the probability with which a span ends after each word
SPAN_LENGTHS = (1 - (1 - SPAN_END) ** np.arange(1, MAX_SPAN_WORDS)) / (1 - (1 - SPAN_END) ** MAX_SPAN_WORDS)
SPARE_SPANS = 1.25  # spans that are placed for each that is expected to be selected
ORDER_BITS = 24  # of a random number that hold an index


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row as the model sees it, the selected positions in increasing order, and the original tokens at them."""

    row: Row
    selected: Int64[np.ndarray, " selected"]
    labels: Integer[np.ndarray, " selected"]


def mask_row(row: Row, vocabulary: Maskable, masking: Masking, seed: int, epoch: int, row_id: int) -> MaskedRow:
    """Returns the row with round(fraction * maskable) positions selected, at least one if any is maskable.

    The mask depends on (seed, epoch, row_id) only: random words come from Philox with the key (seed, row_id) and the
    epoch as the highest word of the counter (Salmon et al. 2011). Each selected token, or each span of them, is shown
    as the mask token, as random tokens or unchanged, with the probabilities of `masking`.
    """
    pattern = epoch if masking.mask_patterns is None else epoch % masking.mask_patterns
    philox = np.random.Philox(key=np.array([seed, row_id], np.uint64), counter=np.array([0, 0, 0, pattern], np.uint64))
    maskable = np.flatnonzero(vocabulary.is_maskable[row.input_ids])
    num_selected = min(len(maskable), max(1, round(masking.selected_fraction * len(maskable))))
    spans = None
    if masking.unit == "token" or not num_selected:
        selected = maskable[_smallest(philox.random_raw(len(maskable)), num_selected)]
    elif masking.unit == "word":
        selected = maskable[_words(_word_edges(row, vocabulary, maskable), num_selected, philox)]
    else:
        chosen, opens_span = _spans(_word_edges(row, vocabulary, maskable), num_selected, philox)
        selected = maskable[chosen]
        opens_span[0] = True  # also of a span that goes on from the end of the row
        opens_span[1:] |= selected[1:] - selected[:-1] > 1
        spans = np.cumsum(opens_span) - 1
    labels = row.input_ids[selected]

    num_shown = len(selected) if spans is None else int(spans[-1]) + 1
    uniform = _unit_interval(philox.random_raw(num_shown + len(selected)))
    shown_as = uniform[:num_shown] if spans is None else uniform[spans]
    drawn = vocabulary.drawable[(uniform[num_shown:] * len(vocabulary.drawable)).astype(np.int64)]
    is_masked = shown_as < masking.masked_share
    is_random = ~is_masked & (shown_as < masking.masked_share + masking.random_share)
    seen = row.input_ids.astype(np.int64, copy=True)
    seen[selected] = np.where(is_masked, vocabulary.mask, np.where(is_random, drawn, labels))
    return MaskedRow(row.with_input_ids(seen), selected, labels)


def _smallest(words: UInt64[np.ndarray, " n"], count: int) -> Int64[np.ndarray, " count"]:
    """Returns the indices of the `count` smallest numbers in increasing order; of equal ones, the first ones."""
    if count:
        smallest = np.flatnonzero(words <= np.partition(words, count - 1)[count - 1])
        if len(smallest) == count:
            return smallest
    return np.sort(np.argsort(words, kind="stable")[:count])


def _word_edges(
    row: Row, vocabulary: Maskable, maskable: Int64[np.ndarray, " maskable"]
) -> Int64[np.ndarray, " edges"]:
    """Returns at which of the maskable tokens each word starts, and their number."""
    if row.is_word_start is None:
        assert vocabulary.words is not None  # Vocabulary.maskable_in has made it for this unit
        is_start = vocabulary.words.starts(row.input_ids)[maskable]
    else:
        is_start = row.is_word_start[maskable]
    is_start[0] = True
    is_start[1:] |= maskable[1:] - maskable[:-1] > 1  # a special token ends a word
    return np.append(np.flatnonzero(is_start), len(maskable))


def _words(
    edges: Int64[np.ndarray, " edges"], num_selected: int, philox: np.random.Philox
) -> Int64[np.ndarray, " selected"]:
    """Returns the tokens of whole words, in increasing order."""
    sizes = edges[1:] - edges[:-1]
    order = _random_order(philox.random_raw(len(sizes)))
    totals = np.cumsum(sizes[order])
    num_whole = int(np.searchsorted(totals, num_selected, side="right"))
    is_chosen = np.zeros(len(sizes), dtype=bool)
    is_chosen[order[:num_whole]] = True
    if room := num_selected - (int(totals[num_whole - 1]) if num_whole else 0):
        for word, size in zip(order[num_whole:].tolist(), sizes[order[num_whole:]].tolist(), strict=True):
            if size <= room:
                is_chosen[word] = True
                room -= size
                if not room:
                    break
        if room == num_selected:
            is_chosen[order[np.argmin(sizes[order])]] = True
    return np.flatnonzero(np.repeat(is_chosen, sizes))


def _spans(
    edges: Int64[np.ndarray, " edges"], num_selected: int, philox: np.random.Philox
) -> tuple[Int64[np.ndarray, " selected"], Bool[np.ndarray, " selected"]]:
    """Returns the tokens of spans, in increasing order, and whether a span starts at each."""
    num_words, num_tokens = len(edges) - 1, int(edges[-1])
    ring = np.concatenate([edges[:-1], edges + num_tokens])  # the first token of each word, twice around
    num_placed = min(num_words, MAX_SPAN_WORDS + math.ceil(SPARE_SPANS * num_selected * num_words / num_tokens))
    while True:  # until enough words are in spans, mostly at once
        lengths = span_lengths(_unit_interval(philox.random_raw(num_placed)))
        ends = np.cumsum(lengths)
        lengths = lengths[: int(np.searchsorted(ends, num_placed)) + 1]
        num_in_spans = min(int(ends[len(lengths) - 1]), num_words)
        lengths[-1] += num_in_spans - ends[len(lengths) - 1]
        drawn = _unit_interval(philox.random_raw(len(lengths) + 1))
        gaps = (drawn[1:] * (num_words - num_in_spans + 1)).astype(np.int64)  # the words outside spans before each
        order = np.argsort(gaps, kind="stable")
        begins = np.empty_like(gaps)
        begins[order] = gaps[order] + np.cumsum(lengths[order]) - lengths[order]
        begins += int(drawn[0] * num_words)
        firsts = ring[begins]
        sizes = ring[begins + lengths] - firsts
        totals = np.cumsum(sizes)
        if totals[-1] >= num_selected:
            break
        num_placed = min(num_words, 2 * num_placed)
    num_spans = int(np.searchsorted(totals, num_selected)) + 1
    firsts, sizes, before = firsts[:num_spans], sizes[:num_spans], (totals - sizes)[:num_spans]
    sizes[-1] = num_selected - before[-1]
    is_selected, opens_span = np.zeros((2, num_tokens), dtype=bool)
    is_selected[(np.repeat(firsts - before, sizes) + np.arange(num_selected)) % num_tokens] = True
    opens_span[firsts % num_tokens] = True
    return np.flatnonzero(is_selected), opens_span[is_selected]


def span_lengths(uniform: Float64[np.ndarray, " spans"]) -> Int64[np.ndarray, " spans"]:
    """Returns the lengths of spans in words for numbers that are uniform between 0 and 1."""
    return 1 + np.searchsorted(SPAN_LENGTHS, uniform, side="right")


def _random_order(words: UInt64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Returns 0 to n - 1 in the order of random words, which no sorting algorithm changes: no two keys are equal."""
    index = np.uint64((1 << ORDER_BITS) - 1)
    keys = (words & ~index) | np.arange(len(words), dtype=np.uint64)
    keys.sort()
    return (keys & index).astype(np.int64)


def _unit_interval(words: UInt64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
