"""TF-IDF with logistic regression: what a classifier without a pretrained model reaches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

from longmlm.artifacts.downstream import Prediction
from longmlm.data.folds import Fold
from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.data.sentences import has_spaces
from longmlm.errors import DataError, TrainingError
from longmlm.scoring.scores import main_score, predicted_labels

STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse strengths of L2 regularisation to choose from
MAX_TERMS = 500_000  # the most frequent ones
MAX_ITERATIONS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TfidfModel:
    """A vectorizer and, for each label, a column of `classifier`; `length` is the number of words that are read."""

    labels: tuple[str, ...]
    is_multilabel: bool
    length: int | None
    has_spaces: bool
    vectorizer: Any
    classifier: "LinearClassifier"
    dev_score: float = 0.0

    @property
    def num_parameters(self) -> int:
        """The number of weights of all terms and labels, and of the labels' biases."""
        return (len(self.vectorizer.vocabulary_) + 1) * len(self.labels)

    def probabilities(self, texts: Sequence[str]) -> Float[np.ndarray, "texts labels"]:
        """Returns the probability of each label for each text."""
        return self.classifier.probabilities(self.vectorizer.transform([self.read(text) for text in texts]))

    def read(self, text: str) -> str:
        """Returns the part of a text that is read."""
        return _cut(text, self.length, spaced=self.has_spaces)

    def characters_read(self, text: str) -> Int64[np.ndarray, "1 2"]:
        """Returns start and end of the part that is read."""
        if not self.has_spaces or self.length is None:
            return np.array([[0, self.length or len(text)]])
        rest = text.split(None, self.length)[self.length :]
        return np.array([[0, len(text) - len("".join(rest))]])

    def predictions(self, documents: Sequence[LabelledDocument]) -> tuple[Prediction, ...]:
        """Returns the predicted labels of each document; lengths are in words."""
        table = self.probabilities([document.text for document in documents])
        return tuple(
            Prediction(
                document=document.id,
                num_tokens=len(document.text.split()) if self.has_spaces else len(document.text),
                labels=document.labels,
                predicted=predicted_labels(row, self.labels, self.is_multilabel),
                probabilities=tuple(row.tolist()),
            )
            for document, row in zip(documents, table, strict=True)
        )


@dataclass(frozen=True, slots=True)
class LinearClassifier:
    """Logistic regressions, each with the columns of its classes; a label that all or no documents have has none."""

    constant: Float[np.ndarray, " labels"]
    parts: tuple[tuple[Any, tuple[int, ...]], ...]

    def probabilities(self, vectors: Any) -> Float[np.ndarray, "texts labels"]:
        """Returns the probability of each label."""
        table = np.tile(self.constant, (vectors.shape[0], 1))
        for regression, columns in self.parts:
            table[:, columns] = regression.predict_proba(vectors)[:, -len(columns) :]
        return table


def fit_tfidf(corpus: LabelledCorpus, fold: Fold, length: int | None, seed: int) -> TfidfModel:
    """Returns the model that was fitted on the training documents and scores highest on the development documents.

    Terms are words and pairs of words; characters and pairs of them where most documents are in a script without
    spaces. Only the first `length` words, or characters, of a document are read. Raises TrainingError without
    scikit-learn, DataError if no document has a word.
    """
    check_sklearn_installed()
    from sklearn.feature_extraction.text import TfidfVectorizer

    train, dev = ([corpus.documents[number] for number in numbers] for numbers in (fold.train, fold.dev))
    spaced = 2 * sum(has_spaces(document.text) for document in train) >= len(train)
    analyzer: Literal["word", "char"] = "word" if spaced else "char"
    vectorizer = TfidfVectorizer(analyzer=analyzer, ngram_range=(1, 2), max_features=MAX_TERMS, sublinear_tf=True)
    try:
        vectors = vectorizer.fit_transform([_cut(document.text, length, spaced=spaced) for document in train])
    except ValueError as error:
        raise DataError("no training document has a word: TF-IDF has nothing to count") from error
    models = []
    for strength in STRENGTHS:
        classifier = _fitted(vectors, train, corpus, strength, seed)
        model = TfidfModel(
            labels=corpus.labels,
            is_multilabel=corpus.is_multilabel,
            length=length,
            has_spaces=spaced,
            vectorizer=vectorizer,
            classifier=classifier,
        )
        score = main_score(model.predictions(dev), "classification", corpus.is_multilabel) if dev else 0.0
        models.append(replace(model, dev_score=score))
    return max(models, key=lambda model: model.dev_score)


def check_sklearn_installed() -> None:
    """Raises TrainingError if scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise TrainingError(
            "an arm without a model needs scikit-learn, which is not installed: pip install 'longmlm[downstream]'"
        )


def _fitted(
    vectors: Any, train: Sequence[LabelledDocument], corpus: LabelledCorpus, strength: float, seed: int
) -> LinearClassifier:
    """Returns one regression for all labels if each document has one, else one for each label."""
    from sklearn.linear_model import LogisticRegression

    def regression() -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, random_state=seed % 2**32)

    numbers = {label: number for number, label in enumerate(corpus.labels)}
    has_label = np.zeros((len(train), len(numbers)))
    for row, document in enumerate(train):
        has_label[row, [numbers[label] for label in document.labels]] = 1
    constant = has_label.min(axis=0)
    if not corpus.is_multilabel:
        occurring = np.flatnonzero(has_label.any(axis=0))
        if len(occurring) == 1:
            return LinearClassifier(constant, ())
        fitted = regression().fit(vectors, has_label.argmax(axis=1))
        return LinearClassifier(np.zeros(len(numbers)), ((fitted, tuple(occurring.tolist())),))
    varying = np.flatnonzero(has_label.any(axis=0) & ~has_label.all(axis=0)).tolist()
    parts = tuple((regression().fit(vectors, has_label[:, column]), (column,)) for column in varying)
    return LinearClassifier(constant, parts)


def _cut(text: str, length: int | None, *, spaced: bool) -> str:
    """Returns the first `length` words, or characters, of a text; all of it without a length."""
    if length is None:
        return text
    return " ".join(text.split(None, length)[:length]) if spaced else text[:length]
