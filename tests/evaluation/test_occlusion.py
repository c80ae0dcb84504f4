"""Occlusion names the paragraph that a label comes from, and which spans a model did not read."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from longmlm.artifacts.downstream import LabelledSpan, Prediction
from longmlm.data.labelled import LabelledDocument
from longmlm.evaluation.occlusion import MAX_PARTS, longest_documents, occlusion, parts_of, span_outcomes

TEXT = "Rain in the town.\n\nThe goal came late.\n  Nothing else.\n"


def probabilities(texts: Sequence[str]) -> np.ndarray:
    """Returns 0.9 for the label sport where the text has a goal, else 0.3."""
    sport = np.array([0.9 if "goal" in text else 0.3 for text in texts])
    return np.stack([1 - sport, sport], axis=1)


def first(text: str, num_characters: int | None = None) -> np.ndarray:
    """Returns what an arm reads that reads the first characters, or all of them."""
    return np.array([[0, len(text) if num_characters is None else num_characters]])


def test_the_paragraph_that_decides_has_the_effect() -> None:
    document = LabelledDocument(id="a", text=TEXT, labels=("law",))
    prediction = Prediction(document="a", num_tokens=9, labels=("law",), predicted=("sport",))
    explained = occlusion(document, prediction, ("law", "sport"), probabilities, first(TEXT))
    assert (explained.document, explained.labels, explained.predicted) == ("a", ("law",), ("sport",))
    assert explained.probability == pytest.approx(90)
    assert [part.excerpt for part in explained.parts] == ["Rain in the town.", "The goal came late.", "Nothing else."]
    assert [part.effect for part in explained.parts] == pytest.approx([0, 60, 0])
    assert [TEXT[part.start : part.end] for part in explained.parts] == [part.excerpt for part in explained.parts]


def test_a_part_without_a_character_that_is_read_is_not_removed() -> None:
    document = LabelledDocument(id="a", text=TEXT, labels=("law",))
    prediction = Prediction(document="a", num_tokens=9, labels=("law",), predicted=("sport",))
    texts: list[str] = []

    def watched(asked: Sequence[str]) -> np.ndarray:
        texts.extend(asked)
        return probabilities(asked)

    explained = occlusion(document, prediction, ("law", "sport"), watched, first(TEXT, 22))
    assert [part.is_read for part in explained.parts] == [True, True, False]
    assert len(texts) == 3  # the whole text, and without each part that is read


def test_without_a_predicted_label_the_likeliest_is_explained() -> None:
    document = LabelledDocument(id="a", text=TEXT)
    explained = occlusion(
        document, Prediction(document="a", num_tokens=9), ("law", "sport"), probabilities, first(TEXT)
    )
    assert explained.predicted == ("sport",)


def test_the_effect_on_several_labels_is_their_mean() -> None:
    document = LabelledDocument(id="a", text=TEXT)
    both = Prediction(document="a", num_tokens=9, predicted=("law", "sport"))
    explained = occlusion(document, both, ("law", "sport"), probabilities, first(TEXT))
    assert explained.probability == pytest.approx(50)
    assert [part.effect for part in explained.parts] == pytest.approx([0, 0, 0])


@pytest.mark.parametrize("text", ["One came. Two went. Three stayed.", "他来了。她走了。我们留下了。"])
def test_a_single_paragraph_is_cut_into_sentences(text: str) -> None:
    assert len(parts_of(text)) == 3
    assert "".join(text[start:end] for start, end in parts_of(text)) == text


def test_many_paragraphs_are_merged_into_parts_of_similar_length() -> None:
    text = "\n".join(f"paragraph {number} {'x' * (number % 9)}" for number in range(500))
    parts = parts_of(text)
    assert MAX_PARTS - 2 <= len(parts) <= MAX_PARTS
    assert parts[0][0] == 0 and parts[-1][1] == len(text)
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(parts))
    lengths = [end - start for start, end in parts]
    assert max(lengths) < 1.5 * min(lengths)


def test_a_document_of_one_part_is_not_occluded() -> None:
    document = LabelledDocument(id="a", text="goal")
    explained = occlusion(
        document, Prediction(document="a", num_tokens=1), ("law", "sport"), probabilities, first("goal")
    )
    assert explained.parts == () and explained.probability == pytest.approx(90)


def test_spans_are_found_missed_or_not_read() -> None:
    text = "Ann met Bob and then Cy."
    spans = (LabelledSpan(0, 3, "PER"), LabelledSpan(8, 11, "PER"), LabelledSpan(21, 23, "PER"))
    document = LabelledDocument(id="n", text=text, spans=spans)
    prediction = Prediction(
        document="n", num_tokens=6, spans=spans, predicted_spans=spans[:1], token_starts=(0, 2, 5, 0)
    )
    offsets = np.array([(0, 0), (0, 3), (4, 7), (8, 11), (0, 0)], np.int64)  # with special tokens
    outcomes = span_outcomes(document, prediction, offsets).spans
    assert [(one.text, one.token, one.is_read, one.is_found) for one in outcomes] == [
        ("Ann", 0, True, True),
        ("Bob", 2, True, False),
        ("Cy", 5, False, False),
    ]


def test_the_longest_test_documents_are_explained() -> None:
    documents = [LabelledDocument(id=str(n), text="x" * length) for n, length in enumerate((5, 9, 7, 9, 30))]
    assert longest_documents(documents, (0, 1, 2, 3), 3) == (1, 3, 2)
    assert longest_documents(documents, (0, 1), 0) == ()
