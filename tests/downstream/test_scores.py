"""Metrics equal scikit-learn's, entity F1 is right on cases made by hand, and weights mean repeated documents."""

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from longmlm.downstream.artifacts import LabelledSpan, Prediction, Target
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.scores import METRICS, Ratios, main_score, ratios_of
from longmlm.experiments.intervals import averaged, resampled, scores

LABELS = tuple("abcdef")


def corpus(target: Target) -> LabelledCorpus:
    return LabelledCorpus((), (), LABELS, target, ())


def classified(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Prediction]:
    pairs = zip(truth, predicted, strict=True)
    return {
        str(number): Prediction(document=str(number), unit=str(number), truth=tuple(one), predicted=tuple(other))
        for number, (one, other) in enumerate(pairs)
    }


def labelled(spans: str, found: str) -> Prediction:
    """Returns a prediction of one-character spans: "ab" are spans of the labels a and b at characters 0 and 1."""
    true, predicted = (
        tuple(LabelledSpan(at, at + 1, label) for at, label in enumerate(text) if label != " ")
        for text in (spans, found)
    )
    return Prediction(document=f"{spans}/{found}", unit="d", truth=true, predicted=predicted)


def values_of(prediction: Prediction) -> dict[str, float]:
    measured = ratios_of({"d": prediction}, ["d"], ("a", "b"), "spans")
    return dict(zip((*measured.names, *measured.labels), measured.values(np.ones((1, 1)))[0].tolist(), strict=True))


@pytest.mark.parametrize("num_labels", [2, 5, 6])
def test_single_labels_score_as_in_scikit_learn(num_labels: int) -> None:
    generator = np.random.default_rng(num_labels)
    names = np.array(LABELS[:num_labels])
    truth, predicted = (
        names[generator.integers(num_labels, size=80)],
        names[generator.integers(num_labels - 1, size=80)],
    )
    predictions = classified(truth[:, None].tolist(), predicted[:, None].tolist())
    measured = ratios_of(predictions, [*predictions], LABELS, "label")
    accuracy, macro, *of_labels = measured.values(np.ones((1, 80)))[0]
    assert accuracy == pytest.approx(100 * accuracy_score(truth, predicted))
    assert macro == pytest.approx(100 * f1_score(truth, predicted, average="macro"))
    expected = f1_score(truth, predicted, average=None, labels=names)
    assert of_labels[:num_labels] == pytest.approx(100 * expected)
    assert np.isnan(of_labels[num_labels:]).all()
    assert main_score([*predictions.values()], corpus("label")) == accuracy


def test_several_labels_score_as_in_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    truth, predicted = generator.random((2, 90, len(LABELS))) < 0.4
    chosen = [[[LABELS[column] for column in np.flatnonzero(row)] for row in table] for table in (truth, predicted)]
    predictions = classified(*chosen)
    measured = ratios_of(predictions, [*predictions], LABELS, "labels")
    micro, accuracy, macro, *_ = measured.values(np.ones((1, 90)))[0]
    assert measured.names == METRICS["labels"] == ("micro-F1", "accuracy", "macro-F1")
    assert micro == pytest.approx(100 * f1_score(truth, predicted, average="micro"))
    assert accuracy == pytest.approx(100 * accuracy_score(truth, predicted))
    assert macro == pytest.approx(100 * f1_score(truth, predicted, average="macro"))
    assert main_score([*predictions.values()], corpus("labels")) == micro


def test_weights_repeat_documents() -> None:
    generator = np.random.default_rng(4)
    weights = generator.integers(3, size=(5, 60)).astype(float)
    repeated = [np.repeat(np.arange(60), row.astype(int)) for row in weights]
    truth, predicted = np.array(LABELS)[generator.integers(4, size=(2, 60))]
    predictions = classified(truth[:, None].tolist(), predicted[:, None].tolist())
    measured = ratios_of(predictions, [*predictions], LABELS, "label")
    expected = [
        [accuracy_score(truth[r], predicted[r]), f1_score(truth[r], predicted[r], average="macro")] for r in repeated
    ]
    assert measured.values(weights)[:, :2] == pytest.approx(100 * np.array(expected))


def test_a_span_is_correct_if_borders_and_label_are() -> None:
    values = values_of(labelled("ab a", "aab "))  # one of three true spans, one of three predicted ones
    third = pytest.approx(100 / 3)
    assert (values["entity F1"], values["precision"], values["recall"]) == (third, third, third)
    assert (values["a"], values["b"], values["macro-F1"]) == (pytest.approx(100 * 2 / 4), 0, pytest.approx(25))
    longer = Prediction(document="d", unit="d", truth=(LabelledSpan(0, 3, "a"),), predicted=(LabelledSpan(0, 4, "a"),))
    assert values_of(longer)["entity F1"] == 0
    assert main_score([longer, labelled("a", "a")], corpus("spans")) == 50


def test_a_metric_of_one_unit_has_no_interval_though_others_have() -> None:
    parts = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], np.float64)
    wholes = np.array([[1, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1]], np.float64)
    [values] = resampled([Ratios(("accuracy", "macro-F1"), ("a", "b"), parts, wholes)], ["p", "q", "r", "r"])
    accuracy, macro, first, second = scores(["accuracy", "macro-F1", "a", "b"], averaged([values]))
    assert (second.mean, second.low, second.high) == (50, None, None)
    assert all(score.low is not None and score.low < score.high for score in (accuracy, macro, first))
