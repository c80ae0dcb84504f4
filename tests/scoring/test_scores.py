"""Metrics equal scikit-learn's, entity F1 is right on cases made by hand, and weights mean repeated documents."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from longmlm.artifacts.downstream import LabelledSpan, Prediction
from longmlm.scoring.scores import Metric, main_score, metrics_of, recall_beyond

LABELS = tuple("abcdef")


def classified(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Prediction]:
    pairs = zip(truth, predicted, strict=True)
    return {
        str(number): Prediction(document=str(number), num_tokens=9, labels=tuple(one), predicted=tuple(other))
        for number, (one, other) in enumerate(pairs)
    }


def labelled(spans: str, found: str, starts: Sequence[int], num_tokens: int = 2000) -> Prediction:
    """Returns a prediction of one-character spans: "ab" are spans of the labels a and b at characters 0 and 1."""
    true, predicted = (
        tuple(LabelledSpan(at, at + 1, label) for at, label in enumerate(text) if label != " ")
        for text in (spans, found)
    )
    tokens = tuple(starts[span.start] for span in (*true, *predicted))
    return Prediction(document="d", num_tokens=num_tokens, spans=true, predicted_spans=predicted, token_starts=tokens)


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    ranks = [[(values < value).sum() + (values == value).sum() / 2 for value in values] for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def values_of(prediction: Prediction) -> dict[Metric, float]:
    measured = metrics_of({"d": prediction}, ["d"], ("a", "b"), "labelling", is_multilabel=False)
    return dict(zip(measured.metrics, measured.values(np.ones((1, 1)))[0].tolist(), strict=True))


@pytest.mark.parametrize("num_labels", [2, 5, 6])
def test_single_labels_score_as_in_scikit_learn(num_labels: int) -> None:
    generator = np.random.default_rng(num_labels)
    names = np.array(LABELS[:num_labels])
    truth, predicted = (
        names[generator.integers(num_labels, size=80)],
        names[generator.integers(num_labels - 1, size=80)],
    )
    predictions = classified(truth[:, None].tolist(), predicted[:, None].tolist())
    measured = metrics_of(predictions, [*predictions], LABELS, "classification", is_multilabel=False)
    accuracy, macro, *of_labels = measured.values(np.ones((1, 80)))[0]
    assert accuracy == pytest.approx(100 * accuracy_score(truth, predicted))
    assert macro == pytest.approx(100 * f1_score(truth, predicted, average="macro"))
    expected = f1_score(truth, predicted, average=None, labels=names)
    assert of_labels[:num_labels] == pytest.approx(100 * expected)
    assert np.isnan(of_labels[num_labels:]).all()
    assert main_score([*predictions.values()], "classification", is_multilabel=False) == accuracy


def test_several_labels_score_as_in_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    truth, predicted = generator.random((2, 90, len(LABELS))) < 0.4
    chosen = [[[LABELS[column] for column in np.flatnonzero(row)] for row in table] for table in (truth, predicted)]
    predictions = classified(*chosen)
    measured = metrics_of(predictions, [*predictions], LABELS, "classification", is_multilabel=True)
    micro, accuracy, macro, *_ = measured.values(np.ones((1, 90)))[0]
    assert [metric.name for metric in measured.metrics[:3]] == ["micro-F1", "accuracy", "macro-F1"]
    assert micro == pytest.approx(100 * f1_score(truth, predicted, average="micro"))
    assert accuracy == pytest.approx(100 * accuracy_score(truth, predicted))
    assert macro == pytest.approx(100 * f1_score(truth, predicted, average="macro"))
    assert main_score([*predictions.values()], "classification", is_multilabel=True) == micro


def test_weights_repeat_documents() -> None:
    generator = np.random.default_rng(4)
    weights = generator.integers(3, size=(5, 60)).astype(float)
    repeated = [np.repeat(np.arange(60), row.astype(int)) for row in weights]
    truth, predicted = np.array(LABELS)[generator.integers(4, size=(2, 60))]
    predictions = classified(truth[:, None].tolist(), predicted[:, None].tolist())
    measured = metrics_of(predictions, [*predictions], LABELS, "classification", is_multilabel=False)
    expected = [
        [accuracy_score(truth[r], predicted[r]), f1_score(truth[r], predicted[r], average="macro")] for r in repeated
    ]
    assert measured.values(weights)[:, :2] == pytest.approx(100 * np.array(expected))
    one, other = generator.integers(8, size=(2, 60)).astype(float)  # many ties
    scored = {
        str(number): Prediction(document=str(number), num_tokens=9, score=a, predicted_score=b)
        for number, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True))
    }
    ranks = metrics_of(scored, [*scored], (), "similarity", is_multilabel=False)
    expected = [[100 * spearman(one[r], other[r])] for r in repeated]
    assert ranks.values(weights) == pytest.approx(np.array(expected))
    with_others = metrics_of(scored, ["x", *scored, "y"], (), "similarity", is_multilabel=False)
    assert with_others.values(np.pad(weights, ((0, 0), (1, 1)), constant_values=7)) == pytest.approx(np.array(expected))


def test_equal_scores_have_no_correlation() -> None:
    scored = [Prediction(document=name, num_tokens=9, score=1.0, predicted_score=0.5) for name in "ab"]
    assert main_score(scored, "similarity", is_multilabel=False) == 0


def test_a_span_is_correct_if_borders_and_label_are() -> None:
    starts = (0, 1, 2, 3)
    values = values_of(labelled("ab a", "aab ", starts))  # one of three true spans, one of three predicted ones
    scores = {metric.name: value for metric, value in values.items() if metric.group == "score"}
    third = pytest.approx(100 / 3)
    assert (scores["entity F1"], scores["precision"], scores["recall"]) == (third, third, third)
    assert values[Metric("label", "a")] == pytest.approx(100 * 2 / 4)
    assert values[Metric("label", "b")] == 0
    assert scores["macro-F1"] == pytest.approx(25)
    assert np.isnan(scores[recall_beyond(512)])
    longer = Prediction(
        document="d",
        num_tokens=9,
        spans=(LabelledSpan(0, 3, "a"),),
        predicted_spans=(LabelledSpan(0, 4, "a"),),
        token_starts=(0, 0),
    )
    assert values_of(longer)[Metric("score", "entity F1")] == 0
    assert main_score([longer, labelled("a", "a", (0,))], "labelling", is_multilabel=False) == 100  # one document


def test_spans_are_counted_where_they_begin() -> None:
    values = values_of(labelled("aaaa", "a a ", (511, 512, 600, 9000), 9100))
    positions = {metric.name: value for metric, value in values.items() if metric.group == "position"}
    assert list(positions)[:2] == ["0–511", "512–1023"] and list(positions)[-1] == "4096+"
    assert (positions["0–511"], positions["512–1023"], positions["4096+"]) == (100, pytest.approx(100 * 2 / 3), 0)
    assert values[Metric("score", recall_beyond(512))] == pytest.approx(100 / 3)
    cuts = {metric.name: value for metric, value in values.items() if metric.group == "cut"}
    assert np.isnan([*cuts.values()]).all(), "a prediction of an earlier version has no distances"


def test_spans_are_counted_by_their_distance_from_a_cut() -> None:
    one = labelled("aaaa", "a a ", (511, 512, 600, 9000), 9100)  # the first and the third are found
    values = values_of(replace(one, cut_distances=(1, 0, 88, -1, 1, 88)))
    cuts = {metric.name: value for metric, value in values.items() if metric.group == "cut"}
    assert list(cuts) == ["0–15", "16–63", "64–127", "128–255", "256–511", "512+"]
    assert (cuts["0–15"], cuts["64–127"]) == (pytest.approx(200 / 3), 100)
    assert all(np.isnan(cuts[name]) for name in ("16–63", "128–255", "256–511", "512+"))
