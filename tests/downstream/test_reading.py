"""What arms read of documents, by the model's own tokenizer, and the classes of tokens in windows."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from longmlm.downstream import reading
from longmlm.downstream.artifacts import LabelledSpan, Target
from longmlm.downstream.documents import LabelledCorpus, units_of
from longmlm.downstream.reading import IGNORED, Example, bio_labels, collate, examples_of, set_reading, windows_overlap
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import Arm
from longmlm.settings.shipped import PACKAGE

TOKENIZER = AutoTokenizer.from_pretrained(PACKAGE / "bundled" / "roberta-mini")
TEXT = "Anna Karenina read a letter in the garden, and her husband walked to the station of Bern alone that night."
LABELLED = LabelledDocument(id="d", text=TEXT, labels=("a",))
WHOLE = TOKENIZER(TEXT)["input_ids"]


def corpus_of(*documents: LabelledDocument, target: Target = "label") -> LabelledCorpus:
    labels = sorted({label for document in documents for label in document.all_labels})
    return LabelledCorpus(documents, units_of(documents), tuple(labels), target, ())


def read(corpus: LabelledCorpus, reads: str, length: int) -> list[Example]:
    """Returns the documents as an arm reads them, the last one first."""
    arm = Arm(model="m", reads=reads)
    set_reading(TOKENIZER, arm, length)
    return [*examples_of(corpus, range(len(corpus.documents))[::-1], TOKENIZER, arm)]


def test_first_last_and_chunks_are_parts_of_the_whole_document() -> None:
    cls, *content, sep = WHOLE
    assert len(content) > 20
    first, last, chunks = (read(corpus_of(LABELLED), reads, 10)[0].inputs for reads in ("first", "last", "chunks"))
    assert first == ([cls, *content[:8], sep],)
    assert last == ([cls, *content[-8:], sep],)
    assert [one[0] for one in chunks] == [cls] * len(chunks) and max(map(len, chunks)) == 10
    assert [token for one in chunks for token in one[1:-1]] == content


@settings(deadline=None, max_examples=30)
@given(data=st.data(), reads=st.sampled_from(["first", "chunks"]))
def test_the_classes_of_tokens_give_the_spans_back(reads: str, data: st.DataObject) -> None:
    words = TEXT.replace(",", " ,").split()
    text, spans, begin, number = " ".join(words), [], 0, 0
    while number < len(words):
        size = data.draw(st.integers(1, 3))
        part = " ".join(words[number : number + size])
        if data.draw(st.booleans()):
            spans.append(LabelledSpan(begin, begin + len(part), data.draw(st.sampled_from(["LOC", "PER"]))))
        begin, number = begin + len(part) + 1, number + size
    other = LabelledDocument(id="e", text="a b", spans=(LabelledSpan(0, 1, "LOC"), LabelledSpan(2, 3, "PER")))
    corpus = corpus_of(LabelledDocument(id="d", text=text, spans=tuple(spans)), other, target="spans")
    _, example = read(corpus, reads, 16)
    names = bio_labels(corpus.labels)
    options = {"stride": windows_overlap(16) if reads == "chunks" else 0, "return_offsets_mapping": True}
    encoded = TOKENIZER(text, truncation=True, return_overflowing_tokens=True, **options)
    assert list(example.inputs) == encoded["input_ids"][: len(example.inputs)]
    assert (len(example.inputs) == 1) == (reads == "first") and len(example.inputs[0]) == 16
    for target, offsets in zip(example.target, encoded["offset_mapping"], strict=False):
        assert target[0] == target[-1] == IGNORED
        first, last = offsets[1][0], offsets[-2][1]
        found = [(start, names[one]) for (start, _), one in zip(offsets[1:-1], target[1:-1], strict=True) if one]
        labels_by_start = {start: name[2:] for start, name in found if name.startswith("B")}
        expected = {span.start: span.label for span in spans if first <= span.start < last}
        assert labels_by_start == expected
        inside = [span for span in spans if span.start < first < span.end]
        assert not inside or found[0] == (first, f"I-{inside[0].label}"), "a window that begins inside a span"
        for start, name in found:
            assert any(span.start <= start < span.end and span.label == name[2:] for span in spans)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([(0, 3), (3, 6)], [1, 3]), ([(0, 6)], [1]), ([(0, 3), (3, 5), (5, 6)], [1, 2, 3]), ([], [])],
)
def test_a_token_of_two_spans_is_the_second_ones_where_that_has_no_other(offsets: list, expected: list[int]) -> None:
    spans = (LabelledSpan(0, 5, "LOC"), LabelledSpan(5, 6, "PER"))
    document = LabelledDocument(id="d", text="abcdef", spans=spans)
    assert reading._bio(document, offsets, {"LOC": 1, "PER": 3}) == expected
    assert reading._bio(replace(document, spans=()), offsets, {}) == [0] * len(offsets)


def test_batches_are_padded_on_the_right_and_chunks_know_their_document() -> None:
    other = LabelledDocument(id="e", text="One.", labels=("b",))
    corpus = corpus_of(replace(LABELLED, labels=("a", "b")), other, target="labels")
    examples = read(corpus, "chunks", 10)
    batch, [shortest] = collate(examples, pad=1), examples[0].inputs
    assert batch["owners"].tolist() == [0] + [1] * len(examples[1].inputs)
    assert batch["labels"].tolist() == [[0.0, 1.0], [1.0, 1.0]] and batch["labels"].is_floating_point()
    num_padded = 10 - len(shortest)
    assert batch["attention_mask"][0].tolist() == [1] * len(shortest) + [0] * num_padded
    assert batch["input_ids"][0].tolist() == shortest + [1] * num_padded


def test_the_released_tokenizer_cuts_texts_as_the_arm_reads_them(tmp_path: Path) -> None:
    [example] = read(corpus_of(LABELLED), "last", 10)
    TOKENIZER.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.truncation_side, tokenizer.model_max_length) == ("left", 10)
    assert [tokenizer(TEXT, truncation=True)["input_ids"]] == [*example.inputs]
