"""TF-IDF with logistic regression learns which words mean a label, stops reading at its length, and needs no spaces."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from longmlm.downstream.artifacts import Prediction, Target
from longmlm.downstream.documents import LabelledCorpus, units_of
from longmlm.downstream.folds import Fold
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.scores import predictions_of
from longmlm.downstream.tfidf import fit_tfidf
from longmlm.errors import DataError

FILLER = ["the", "town", "had", "a", "quiet", "day", "with", "rain", "and", "some", "wind"]
WORDS = {"sport": ["goal", "team", "match"], "law": ["court", "judge", "appeal"], "food": ["salt", "soup", "bread"]}
CHARACTERS = {"law": "法院判决", "food": "面包汤盐"}


def corpus_of(texts: Sequence[tuple[str, tuple[str, ...]]], target: Target = "label") -> LabelledCorpus:
    documents = tuple(LabelledDocument(id=str(n), text=text, labels=labels) for n, (text, labels) in enumerate(texts))
    labels = sorted({label for _, labels in texts for label in labels})
    return LabelledCorpus(documents, units_of(documents), tuple(labels), target, ())


def fold_of(corpus: LabelledCorpus) -> Fold:
    numbers = range(len(corpus.documents))
    return Fold(
        train=tuple(numbers[: len(numbers) // 2]),
        dev=tuple(numbers[-10:]),
        test=tuple(numbers[len(numbers) // 2 : -10]),
    )


def english(count: int, *, first_words: int = 30) -> LabelledCorpus:
    """Returns documents of filler words with three words of their label after them."""
    generator = random.Random(5)
    texts = []
    for number in range(count):
        label = [*WORDS][number % len(WORDS)]
        words = [*generator.choices(FILLER, k=first_words), *generator.sample(WORDS[label], 3)]
        texts.append((" ".join(words), (label,)))
    return corpus_of(texts)


def results_of(corpus: LabelledCorpus, length: int | None = None) -> tuple[list[Prediction], float]:
    """Returns the predictions for the test documents, and the development score."""
    fold = fold_of(corpus)
    model, dev_score = fit_tfidf(corpus, fold, length, 1)
    return predictions_of(corpus, fold.test, model.predict(fold.test)), dev_score


def accuracy(corpus: LabelledCorpus, length: int | None = None) -> float:
    predictions, _ = results_of(corpus, length)
    assert [one.document for one in predictions] == [str(number) for number in fold_of(corpus).test]
    return sum(one.predicted == one.truth for one in predictions) / len(predictions)


def test_words_of_a_label_are_learnt() -> None:
    corpus = english(90)
    predictions, dev_score = results_of(corpus)
    assert dev_score == 100
    assert accuracy(corpus) == 1
    assert all(sum(one.probabilities) == pytest.approx(1) for one in predictions)
    assert {len(one.probabilities) for one in predictions} == {3}


def test_only_the_first_words_are_read() -> None:
    assert accuracy(english(90), 33) == 1
    assert accuracy(english(90), 30) < 0.6


def test_text_without_spaces_is_read_by_characters() -> None:
    generator = random.Random(6)
    texts = [
        ("".join(generator.choices("今天下雨有风", k=30) + generator.sample(CHARACTERS[label], 3)), (label,))
        for label in ["law", "food"] * 40
    ]
    corpus = corpus_of(texts)
    assert accuracy(corpus) == 1
    assert accuracy(corpus, 30) < 0.8


def test_several_labels_are_predicted_each_for_itself() -> None:
    generator = random.Random(7)
    chosen = [tuple(label for label in WORDS if generator.random() < 0.5) for _ in range(120)]
    words = [[*FILLER, *(word for label in labels for word in WORDS[label])] for labels in chosen]
    texts = [(" ".join(one), (*labels, "all")) for one, labels in zip(words, chosen, strict=True)]
    corpus = corpus_of(texts, "labels")
    predictions, dev_score = results_of(corpus)
    assert dev_score > 95
    correct = [set(one.predicted) == set(one.truth) for one in predictions]
    assert sum(correct) / len(correct) > 0.95
    assert all(one.probabilities[0] == 1 for one in predictions)  # "all", which every training document has


def test_a_label_without_a_training_document_has_no_probability() -> None:
    corpus = english(90)
    documents = tuple(replace(one, labels=("law",)) if one.labels == ("food",) else one for one in corpus.documents)
    model, _ = fit_tfidf(replace(corpus, documents=documents), fold_of(corpus), None, 1)
    table = np.stack(model.predict(range(90)))
    assert table[:, corpus.labels.index("food")].tolist() == [0.0] * 90
    assert table.sum(axis=1) == pytest.approx(1)


def test_documents_without_a_word_are_named() -> None:
    corpus = corpus_of([("! ?", ("a",)), ("… .", ("b",))] * 20)
    with pytest.raises(DataError, match="TF-IDF cannot be fitted .* empty vocabulary"):
        fit_tfidf(corpus, fold_of(corpus), None, 1)
