"""TF-IDF with logistic regression: what a classifier without a pretrained model reaches."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

from longmlm.data.languages import has_spaces
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.folds import Fold
from longmlm.downstream.scores import Output, main_score, predictions_of
from longmlm.errors import DataError
from longmlm.settings.pretrain import ComputePrecision

STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse strengths of L2 regularisation to choose from
MAX_TERMS = 500_000  # the most frequent ones
MAX_ITERATIONS = 2_000


@dataclass(frozen=True, slots=True)
class TfidfModel:
    """A fitted pipeline on the documents of a corpus; `length` words or characters of each are read, None for all."""

    corpus: LabelledCorpus
    length: int | None
    spaced: bool
    pipeline: Any

    num_tokens: ClassVar[int] = 0
    precision: ClassVar[ComputePrecision] = "no"

    def predict(self, numbers: Sequence[int]) -> list[Output]:
        """Returns for each document the probability of each label."""
        table = np.zeros((len(numbers), len(self.corpus.labels)))
        found = self.pipeline.predict_proba([self.read(number) for number in numbers])
        table[:, self.pipeline.classes_] = found
        return list(table)

    def read(self, number: int) -> str:
        """Returns the part of a document that is read."""
        text = self.corpus.documents[number].text
        if self.length is None:
            return text
        return " ".join(text.split(None, self.length)[: self.length]) if self.spaced else text[: self.length]

    def fit(self, numbers: Sequence[int]) -> None:
        """Fits the pipeline; raises DataError if no document has a word."""
        documents = [self.corpus.documents[number] for number in numbers]
        target = np.array([[label in one.labels for label in self.corpus.labels] for one in documents], int)
        if self.corpus.target == "label":
            target = target.argmax(axis=1)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Label .* is present in all training examples")
                self.pipeline.fit([self.read(number) for number in numbers], target)
        except ValueError as error:
            raise DataError(f"TF-IDF cannot be fitted to the training documents: {error}") from error


def fit_tfidf(corpus: LabelledCorpus, fold: Fold, length: int | None, seed: int) -> tuple[TfidfModel, float]:
    """Returns the model that was fitted on the training documents, and the best development score of four strengths.

    Terms are words and pairs of words; characters and pairs of them where most documents are in a script without
    spaces. Raises DataError if no document has a word.
    """
    spaced = 2 * sum(has_spaces(corpus.documents[number].text) for number in fold.train) >= len(fold.train)
    fitted = []
    for strength in STRENGTHS:
        vectorizer = TfidfVectorizer(
            analyzer="word" if spaced else "char", ngram_range=(1, 2), max_features=MAX_TERMS, sublinear_tf=True
        )
        classifier: Any = LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, random_state=seed % 2**32)
        if corpus.target == "labels":
            classifier = OneVsRestClassifier(classifier)
        elif len({corpus.documents[number].labels for number in fold.train}) == 1:
            classifier = DummyClassifier()  # regression needs two classes
        model = TfidfModel(corpus, length, spaced, make_pipeline(vectorizer, classifier))
        model.fit(fold.train)
        predictions = predictions_of(corpus, fold.dev, model.predict(fold.dev))
        fitted.append((model, main_score(predictions, corpus)))
    return max(fitted, key=lambda pair: pair[1])
