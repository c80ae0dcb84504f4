"""Windows of a document merged by centrality, and classes of tokens decoded to spans."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.artifacts.downstream import LabelledSpan, Prediction
from longmlm.batches.examples import IGNORED, Example, bio_labels, examples_of
from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.evaluation.spans import cut_distances, deciding_tokens, decode_bio, labelled, token_starts
from tests.support.families import demo_texts, tiny_tokenizer

LABELS = ("LOC", "PER")
NAMES = bio_labels(LABELS)


def windows_of(num_tokens: int, capacity: int, stride: int) -> tuple[list[int], np.ndarray]:
    """Returns the lengths of windows with two special tokens each, and which token of the document each token is."""
    starts = [0]
    while starts[-1] + capacity < num_tokens:
        starts.append(starts[-1] + stride)
    parts = [[-1, *range(start, min(start + capacity, num_tokens)), -1] for start in starts]
    return [len(part) for part in parts], np.concatenate(parts)


def offsets_of_words(text: str) -> np.ndarray:
    ends = np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
    return np.array([(end - len(word), end) for word, end in zip(text.split(" "), ends, strict=True)])


def spans_by_name(names: str, offsets: np.ndarray) -> tuple[LabelledSpan, ...]:
    return decode_bio(np.array([NAMES.index(name) for name in names.split()]), offsets, NAMES)


def test_example_of_windows():
    lengths, indices = windows_of(9, 6, 3)
    assert lengths == [8, 8]
    assert indices.tolist() == [-1, 0, 1, 2, 3, 4, 5, -1, -1, 3, 4, 5, 6, 7, 8, -1]
    assert deciding_tokens(lengths, indices, 9).tolist() == [1, 2, 3, 4, 5, 11, 12, 13, 14]


def test_three_windows_and_a_short_last_one():
    lengths, indices = windows_of(11, 4, 2)
    assert lengths == [6, 6, 6, 6, 5]
    by_window = np.repeat(np.arange(5), lengths)[deciding_tokens(lengths, indices, 11)]
    assert by_window.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_distances_from_the_cuts_of_windows():
    lengths, indices = windows_of(9, 6, 3)
    assert cut_distances(lengths, indices, 9).tolist() == [-1, 6, 5, 4, 3, 2, 1, -1, -1, 0, 1, 2, 3, 4, 5, -1]
    assert cut_distances([5], np.array([-1, 0, 1, 2, -1]), 3).tolist() == [-1] * 5, "the document is read whole"
    head_and_tail = np.array([-1, 0, 1, 5, 6, -1])
    assert cut_distances([6], head_and_tail, 7).tolist() == [-1, 2, 1, 0, 1, -1]
    middle = np.array([-1, 2, 3, 4, -1])
    assert cut_distances([5], middle, 9).tolist() == [-1, 0, 1, 1, -1]
    assert cut_distances([2], np.array([-1, -1]), 0).tolist() == [-1, -1]


def test_tokens_that_are_not_read():
    """Head and tail of a document of 7 tokens in one input."""
    assert deciding_tokens([6], np.array([-1, 0, 1, 5, 6, -1]), 7).tolist() == [1, 2, -1, -1, -1, 3, 4]


@settings(deadline=None)
@given(st.data())
def test_every_token_is_decided_once_by_the_more_central_window(data: st.DataObject):
    capacity = data.draw(st.integers(2, 12))
    num_tokens = data.draw(st.integers(1, 30))
    lengths, indices = windows_of(num_tokens, capacity, capacity // 2)
    deciding = deciding_tokens(lengths, indices, num_tokens)
    assert indices[deciding].tolist() == list(range(num_tokens))
    ends = np.cumsum(lengths)
    for token, decided in enumerate(deciding):
        margins = []
        for start, end in zip(ends - lengths, ends, strict=True):
            margins += [(min(at - start, end - 1 - at), -at) for at in range(start, end) if indices[at] == token]
        assert -max(margins)[1] == decided


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("O O O O", []),
        ("B-PER I-PER O B-LOC", [(0, 7, "PER"), (10, 14, "LOC")]),
        ("B-PER B-PER O O", [(0, 3, "PER"), (4, 7, "PER")]),
        ("I-PER I-PER O O", [(0, 7, "PER")]),
        ("B-PER I-LOC I-LOC O", [(0, 3, "PER"), (4, 9, "LOC")]),
        ("B-PER O I-PER I-PER", [(0, 3, "PER"), (8, 14, "PER")]),
        ("O O O I-LOC", [(10, 14, "LOC")]),
    ],
)
def test_decoding_follows_conlleval(names: str, expected: list[tuple[int, int, str]]):
    offsets = offsets_of_words("Ada Coy i Rome")
    assert [(span.start, span.end, span.label) for span in spans_by_name(names, offsets)] == expected


def test_label_with_a_hyphen():
    names = bio_labels(["per-son"])
    spans = decode_bio(np.array([1, 2]), np.array([[0, 1], [1, 2]]), names)
    assert spans == (LabelledSpan(0, 2, "per-son"),)


def test_tokens_without_characters_and_parts_of_a_character_change_nothing():
    lone_space = np.array([[0, 3], [4, 4], [5, 8]])
    assert spans_by_name("B-PER O I-PER", lone_space) == (LabelledSpan(0, 8, "PER"),)
    assert spans_by_name("B-PER B-LOC O", lone_space) == (LabelledSpan(0, 3, "PER"),)
    bytes_of_one = np.array([[0, 1], [0, 1], [0, 1], [1, 2]])
    assert spans_by_name("B-PER O B-LOC I-PER", bytes_of_one) == (LabelledSpan(0, 2, "PER"),)
    assert spans_by_name("O B-PER B-LOC O", bytes_of_one) == (LabelledSpan(0, 1, "PER"),)


def test_a_word_shares_its_first_character_with_the_mark_before_it():
    """SentencePiece gives the mark of a word's beginning, as a token of its own, the word's first character."""
    offsets = np.array([[0, 3], [4, 5], [4, 8], [9, 11]])
    expected = (LabelledSpan(4, 8, "PER"),)
    for names in ("O B-PER I-PER O", "O B-PER O O", "O B-PER B-LOC O", "O O B-PER O", "O O I-PER O"):
        assert spans_by_name(names, offsets) == expected


def bio_of(spans: list[tuple[int, int, int]], num_tokens: int) -> np.ndarray:
    """Returns the class of each token, for spans of tokens with the number of their label."""
    classes = np.zeros(num_tokens, dtype=np.int64)
    for first, end, label in spans:
        classes[first:end] = 2 + 2 * label
        classes[first] = 1 + 2 * label
    return classes


@settings(deadline=None)
@given(st.data())
def test_encoded_spans_are_decoded_again(data: st.DataObject):
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    starts = np.cumsum(gaps) + np.cumsum([0, *lengths[:-1]])
    offsets = np.stack([starts, starts + lengths], 1)
    borders = sorted(data.draw(st.sets(st.integers(0, len(lengths)))))
    cuts = [(*pair, data.draw(st.sampled_from([None, 0, 1]))) for pair in pairwise(borders)]
    spans = [(first, end, label) for first, end, label in cuts if label is not None]
    decoded = decode_bio(bio_of(spans, len(lengths)), offsets, NAMES)
    ends = offsets.tolist()
    expected = tuple(LabelledSpan(ends[first][0], ends[end - 1][1], LABELS[label]) for first, end, label in spans)
    assert decoded == expected
    assert token_starts(decoded, offsets) == tuple(first for first, *_ in spans)


def test_token_starts():
    offsets = np.array([[0, 3], [4, 4], [5, 8], [9, 10], [9, 10]])
    at = {0: 0, 2: 0, 4: 2, 5: 2, 7: 2, 9: 3, 12: 4}
    spans = [LabelledSpan(start, start + 1, "PER") for start in at]
    assert token_starts(spans, offsets) == tuple(at.values())
    assert token_starts(spans[:1], np.zeros((0, 2), np.int64)) == (0,)


def test_prediction_of_a_document():
    """Two windows of 4 tokens and a fifth token that no window has; the second decides for the third token on."""
    text = "Ada Coy saw Rome again"
    true = (LabelledSpan(0, 7, "PER"), LabelledSpan(12, 16, "LOC"))
    inputs = (np.array([0, 11, 12, 13, 1]), np.array([0, 12, 13, 14, 1]))
    indices = np.array([-1, 0, 1, 2, -1, -1, 1, 2, 3, -1])
    example = Example(0, inputs, np.full(10, IGNORED), 5, offsets_of_words(text), indices)
    per, more_per, loc, outside = (NAMES.index(name) for name in ("B-PER", "I-PER", "B-LOC", "O"))
    classes = np.array([loc, per, more_per, loc, loc, loc, loc, outside, loc, loc])
    document = LabelledDocument(id="one", text=text, spans=true)
    corpus = LabelledCorpus((document,), LABELS, is_multilabel=False, set_aside=())
    assert labelled(corpus, example, classes) == Prediction(
        document="one",
        num_tokens=5,
        spans=true,
        predicted_spans=true,
        token_starts=(0, 3, 0, 3),
        cut_distances=(3, 1, 3, 1),
    )


@pytest.mark.parametrize("kind", [("roberta", 1), ("bert", 0), ("xlm-roberta", 1), ("modernbert", 3)], ids=str)
def test_targets_of_windows_are_decoded_to_the_spans_of_the_document(kind: tuple[str, int]):
    """With byte-level, WordPiece and SentencePiece tokens; every fourth word of each document begins a span."""
    documents = []
    for number, text in enumerate(demo_texts()[:8]):
        words = [match.span() for match in re.finditer(r"\S+", text)]
        chosen = [(words[at][0], words[at + at % 3][1], LABELS[at % 2]) for at in range(1, len(words) - 3, 4)]
        spans = tuple(LabelledSpan(*one) for one in chosen)
        documents.append(LabelledDocument(id=str(number), text=text, spans=spans))
    corpus = LabelledCorpus(tuple(documents), LABELS, is_multilabel=False, set_aside=())
    examples = examples_of(corpus, "labelling", tiny_tokenizer(*kind, 64), "chunks", 64)
    assert all(len(example.inputs) > 2 for example in examples)
    for example, document in zip(examples, documents, strict=True):
        prediction = labelled(corpus, example, example.target)
        assert prediction.predicted_spans == prediction.spans == document.spans
        assert len(document.spans) > 10
        half = len(document.spans)
        assert prediction.token_starts[:half] == prediction.token_starts[half:]
