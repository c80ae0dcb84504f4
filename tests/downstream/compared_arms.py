"""Trials of arms that predict some documents correctly, for the comparison and its page."""

from collections.abc import Mapping, Sequence

from longmlm.downstream.artifacts import (
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    LabelledSpan,
    Prediction,
)
from longmlm.downstream.comparison import compared
from longmlm.downstream.settings import Arm
from longmlm.experiments.experiment import FailedTrial

LABELS = ("no", "yes")
CLEAR = {"base": [1] * 60 + [0] * 40, "long": [1] * 80 + [0] * 20}
UNCLEAR = {"base": [1] * 60 + [0] * 40, "long": [1] * 57 + [0] * 3 + [1] * 5 + [0] * 35}


def trial(arm: str, correct: Sequence[int], seed: int = 1, fold: int = 0, **values: float) -> DownstreamTrial:
    """Returns a trial with a document for each number, 1 if it is predicted correctly; folds have other documents."""
    predictions = tuple(
        Prediction(
            document=f"d{fold}-{number:03}",
            unit=f"d{fold}-{number:03}",
            truth=(LABELS[number % 2],),
            predicted=(LABELS[(number + 1 - is_correct) % 2],),
        )
        for number, is_correct in enumerate(correct)
    )
    score = 100 * sum(correct) / len(correct)
    return trial_of(arm, predictions, (score - 1, score), seed=seed, fold=fold, values=values)


def trial_of(
    arm: str, predictions: tuple[Prediction, ...], dev_scores: tuple[float, ...] = (50.0,), **more: object
) -> DownstreamTrial:
    facts = {"values": {}, "seed": 1, "fold": 0, "num_untested": 0, **more}
    return DownstreamTrial(arm=arm, dev_scores=dev_scores, predictions=predictions, **facts)


def failed_trial(arm: str, **more: object) -> FailedTrial:
    return FailedTrial(**{"arm": arm, "seed": 1, "reason": "no space", **more})


def task(arms: Sequence[str], **changed: object) -> ComparedTask:
    """Returns a task whose arm "tfidf" has no model; the first arm is the baseline."""
    settings = {name: Arm(model=None if name == "tfidf" else f"owner/{name}", length=512) for name in arms}
    facts = {"name": "news", "target": "label", "labels": LABELS, "num_documents": 300}
    facts |= {"num_set_aside": 7, "num_folds": None, "arms": settings, "baseline": arms[0]}
    return ComparedTask(**{**facts, **changed})


def comparison_of(arms: Mapping[str, Sequence[int]], *failed: FailedTrial) -> DownstreamComparison:
    """Returns the comparison of one trial per arm."""
    return compared(task([*arms]), [trial(arm, correct) for arm, correct in arms.items()], failed)


def labelling(**found: Sequence[int]) -> DownstreamComparison:
    """Returns the comparison of arms on 20 documents with four spans each, of which each arm finds some."""
    spans = tuple(LabelledSpan(at, at + 3, "PER") for at in (400, 2000, 2400, 3600))
    trials = []
    for arm, numbers in found.items():
        predicted = tuple(spans[number] for number in numbers)
        documents = [f"novel-{number}" for number in range(20)]
        predictions = [Prediction(document=one, unit=one, truth=spans, predicted=predicted) for one in documents]
        trials.append(trial_of(arm, tuple(predictions)))
    return compared(task([*found], target="spans", labels=("PER",)), trials, [])
