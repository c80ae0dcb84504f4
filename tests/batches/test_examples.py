"""Documents as inputs: what each reading reads, and the classes of tokens in labelled spans."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.downstream import LabelledSpan
from longmlm.batches.examples import IGNORED, Example, bio_labels, characters_read, examples_of
from longmlm.data.labelled import LabelledCorpus
from longmlm.data.labelled_records import LabelledDocument
from longmlm.errors import DataError
from longmlm.settings.downstream import HEAD_TOKENS, Reading
from tests.support.families import tiny_tokenizer

FAMILIES = [("roberta", 1), ("modernbert", 3), ("bert", 0), ("xlm-roberta", 1)]
READINGS: tuple[Reading, ...] = get_args(Reading)
LABELS = ("LOC", "PER")
WORDS = ["the", "Harbour", "of", "湖水像一面镜子", "naïve", "😀", "U.S.", "co-operation", "x", "1880–1895", "“Ahab”"]
SPACES = st.sampled_from([" ", "  ", "\n", " \n\t ", "\u3000"])


@pytest.fixture(params=FAMILIES, ids=[family for family, _ in FAMILIES])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return tiny_tokenizer(*request.param)


def corpus_of(texts: Sequence[str], spans: Sequence[LabelledSpan] = ()) -> LabelledCorpus:
    documents = tuple(
        LabelledDocument(id=str(n), text=text, labels=(LABELS[n % 2],), spans=tuple(spans))
        for n, text in enumerate(texts)
    )
    return LabelledCorpus(documents, LABELS, False, ())


def labelling_example(
    tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[LabelledSpan], length: int = 10_000
) -> Example:
    (example,) = examples_of(corpus_of([text], spans), "labelling", tokenizer, "chunks", length)
    return example


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def decoded(example: Example) -> list[LabelledSpan]:
    """Returns the spans that the classes of the tokens of a document of one input spell."""
    assert example.offsets is not None
    spans: list[LabelledSpan] = []
    for name, (start, end) in zip(
        [bio_labels(LABELS)[index] for index in example.target[1:-1]], example.offsets.tolist(), strict=True
    ):
        if name[0] == "B":
            spans.append(LabelledSpan(start, end, name[2:]))
        elif name[0] == "I":
            assert spans[-1].label == name[2:]
            spans[-1] = dataclasses.replace(spans[-1], end=end)
    return spans


@st.composite
def spanned(draw: st.DrawFn) -> tuple[str, list[LabelledSpan]]:
    """Returns words between white space, and spans of consecutive words of which some touch but for white space."""
    text, spans, begin = draw(st.sampled_from(["", " ", "\n\n"])), [], None
    for word in draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40)):
        begin = len(text) if begin is None else begin
        text += word
        match draw(st.sampled_from(["continue", "label", "skip"])):
            case "label":
                spans.append(LabelledSpan(begin, len(text), draw(st.sampled_from(LABELS))))
                begin = None
            case "skip":
                begin = None
        text += draw(SPACES)
    return text, spans


@settings(deadline=None, max_examples=60)
@given(family=st.sampled_from(FAMILIES), document=spanned())
def test_classes_of_tokens_spell_the_spans(family: tuple[str, int], document: tuple[str, list[LabelledSpan]]) -> None:
    text, spans = document
    example = labelling_example(tiny_tokenizer(*family), text, spans)
    assert decoded(example) == spans
    assert example.target[[0, -1]].tolist() == [IGNORED] * 2
    assert len(example) == len(example.target) == example.num_tokens + 2


@settings(deadline=None, max_examples=60)
@given(family=st.sampled_from(FAMILIES), document=spanned(), length=st.integers(4, 30))
def test_windows_have_every_token_and_its_class(
    family: tuple[str, int], document: tuple[str, list[LabelledSpan]], length: int
) -> None:
    text, spans = document
    tokenizer = tiny_tokenizer(*family)
    whole = labelling_example(tokenizer, text, spans)
    cut = labelling_example(tokenizer, text, spans, length)
    assert cut.token_indices is not None
    assert max(map(len, cut.inputs)) <= length
    is_content = cut.token_indices >= 0
    read = cut.token_indices[is_content]
    assert {*read.tolist()} == {*range(whole.num_tokens)}
    assert np.array_equal(cut.target[is_content], whole.target[1:-1][read])
    assert np.array_equal(np.concatenate(cut.inputs)[is_content], whole.inputs[0][1:-1][read])
    assert (cut.target[~is_content] == IGNORED).all()
    assert np.array_equal(cut.offsets, whole.offsets)
    if whole.num_tokens > length - 2:
        starts = np.flatnonzero(cut.token_indices < 0)[::2] + 1  # after each first special token
        assert (np.diff(cut.token_indices[starts]) == (length - 2) // 2).all()


@settings(deadline=None, max_examples=60)
@given(family=st.sampled_from(FAMILIES), document=spanned(), length=st.integers(3, 40))
def test_chunks_cover_every_token_once(
    family: tuple[str, int], document: tuple[str, list[LabelledSpan]], length: int
) -> None:
    tokenizer, text = tiny_tokenizer(*family), document[0]
    (example,) = examples_of(corpus_of([text]), "classification", tokenizer, "chunks", length)
    ids = ids_of(tokenizer, text)
    assert [token for chunk in example.inputs for token in chunk[1:-1].tolist()] == ids
    assert example.num_tokens == len(ids)
    assert [len(chunk) for chunk in example.inputs[:-1]] == [length] * (len(example.inputs) - 1)
    assert len(example) == len(ids) + 2 * len(example.inputs)


def test_each_reading_reads_its_part_between_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    text = " ".join(f"{word}{number}" for number in range(60) for word in WORDS)
    ids, length = ids_of(tokenizer, text), HEAD_TOKENS + 40
    room = length - 2
    assert len(ids) > 3 * length
    middle = (len(ids) - room) // 2
    expected = {
        "first": ids[:room],
        "middle": ids[middle : middle + room],
        "last": ids[-room:],
        "head-tail": ids[:HEAD_TOKENS] + ids[HEAD_TOKENS - room :],
    }
    first, last = tokenizer("", verbose=False)["input_ids"]
    for reads, content in expected.items():
        for kind in ("classification", "labelling"):
            (example,) = examples_of(corpus_of([text]), kind, tokenizer, reads, length)
            assert [part.tolist() for part in example.inputs] == [[first, *content, last]]
            assert example.num_tokens == len(ids)
        read = characters_read(text, tokenizer, reads, length)
        assert len(read) == len(content)
        parts = [text[start:end].strip() for start, end in read.tolist()]
        starts = {"first": 0, "middle": middle, "last": len(ids) - room, "head-tail": 0}
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        begin, end = encoding["offset_mapping"][starts[reads]]
        assert parts[0] == text[begin:end].strip()
    assert len(characters_read(text, tokenizer, "chunks", length)) == len(ids)


def test_a_tokenizer_that_puts_its_first_token_last_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    turned = copy.deepcopy(tokenizer)
    turned.cls_token, turned.sep_token = tokenizer.sep_token, tokenizer.cls_token
    with pytest.raises(DataError, match="puts the token that its head reads at the end: take a model that puts it"):
        examples_of(corpus_of(["A text."]), "classification", turned, "first", 20)


@pytest.mark.parametrize("num_words", [0, 1, 20])
def test_a_document_shorter_than_the_length_is_read_whole_by_every_reading(
    tokenizer: PreTrainedTokenizerBase, num_words: int
) -> None:
    text = " ".join([*WORDS, *WORDS][:num_words]) or "\n"
    ids = ids_of(tokenizer, text)
    length = max(len(ids) + 2, HEAD_TOKENS + 3)
    for reads in READINGS:
        (example,) = examples_of(corpus_of([text]), "classification", tokenizer, reads, length)
        assert [part[1:-1].tolist() for part in example.inputs] == [ids]


def test_targets_are_classes_flags_or_scores() -> None:
    tokenizer = tiny_tokenizer("roberta", 1)
    corpus = corpus_of(["one", "two", "three"])
    single = examples_of(corpus, "classification", tokenizer, "first", 16)
    assert [(example.document, example.target.tolist()) for example in single] == [(0, 0), (1, 1), (2, 0)]
    several = [dataclasses.replace(corpus.documents[0], labels=labels) for labels in (("PER",), LABELS, ())]
    flags = examples_of(LabelledCorpus(tuple(several), LABELS, True, ()), "classification", tokenizer, "first", 16)
    assert [example.target.tolist() for example in flags] == [[0, 1], [1, 1], [0, 0]]
    pair = dataclasses.replace(corpus.documents[0], text="one two " * 9, second_text="three", score=2.5)
    (example,) = examples_of(LabelledCorpus((pair,), (), False, ()), "similarity", tokenizer, "chunks", 10)
    texts = [example.inputs[: example.num_first], example.inputs[example.num_first :]]
    content = [[token for part in parts for token in part[1:-1].tolist()] for parts in texts]
    assert content == [ids_of(tokenizer, pair.text), ids_of(tokenizer, "three")]
    assert example.num_first > 1
    assert example.target.item() == 2.5
    assert example.num_tokens == sum(map(len, content))


def test_a_span_inside_a_token_has_that_token() -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    text = "xx the 湖水"
    the = LabelledSpan(3, 6, "PER")
    assert decoded(labelling_example(tokenizer, text, [the])) == [the]
    assert decoded(labelling_example(tokenizer, text, [LabelledSpan(4, 5, "PER")])) == [the]
    assert decoded(labelling_example(tokenizer, text, [LabelledSpan(3, 4, "PER"), LabelledSpan(4, 6, "LOC")])) == [the]


def test_a_token_of_two_spans_belongs_to_the_second_only_if_it_has_no_other() -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    text = "x the of"  # three tokens
    spans = [LabelledSpan(0, 4, "PER"), LabelledSpan(4, 5, "LOC")]
    assert decoded(labelling_example(tokenizer, text, spans)) == [LabelledSpan(0, 1, "PER"), LabelledSpan(2, 5, "LOC")]
    spans = [LabelledSpan(0, 4, "PER"), LabelledSpan(4, 8, "LOC")]
    assert decoded(labelling_example(tokenizer, text, spans)) == [LabelledSpan(0, 5, "PER"), LabelledSpan(6, 8, "LOC")]


def test_special_tokens_that_a_text_spells_are_text(tokenizer: PreTrainedTokenizerBase) -> None:
    (example,) = examples_of(
        corpus_of([f"one {tokenizer.mask_token} two {tokenizer.sep_token}"]), "classification", tokenizer, "first", 99
    )
    content = {*example.inputs[0][1:-1].tolist()}
    assert not content & {tokenizer.mask_token_id, tokenizer.sep_token_id}
    assert len(content) > 4


@pytest.mark.parametrize(("reads", "length"), [("head-tail", HEAD_TOKENS + 2), ("first", 2)])
def test_a_length_without_room_is_refused(reads: Reading, length: int) -> None:
    with pytest.raises(DataError, match=f"reads = .{reads}. needs a length above {length} tokens"):
        examples_of(corpus_of(["one"]), "classification", tiny_tokenizer("bert", 0), reads, length)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("Here is Jose\u0301 .", (8, 13)),  # a combining accent, which an uncased BERT drops
        ("in Bern\u200e today", (3, 8)),  # a mark of direction, at its end
        ("in \u200bBern today", (3, 8)),  # and at its beginning
        ("e\u0301", (0, 2)),
    ],
)
def test_characters_that_a_tokenizer_drops_belong_to_their_word(text: str, span: tuple[int, int]) -> None:
    tokenizer = tiny_tokenizer("bert", 0)
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    true = LabelledSpan(*span, "PER")
    example = labelling_example(tokenizer, text, [true])
    assert example.offsets is not None and example.offsets.max() <= len(text)
    assert decoded(example) == [true]
