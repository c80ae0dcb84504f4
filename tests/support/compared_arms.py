"""Trials of arms that predict some documents correctly, for the comparison and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longmlm.artifacts.downstream import (
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    Explanation,
    LabelledSpan,
    OccludedPart,
    Prediction,
    SpanOutcome,
    TrialCost,
)
from longmlm.scoring.compared import compared
from longmlm.settings.downstream import Arm

LABELS = ("no", "yes")
CLEAR = {"base": [1] * 60 + [0] * 40, "long": [1] * 80 + [0] * 20}
UNCLEAR = {"base": [1] * 60 + [0] * 40, "long": [1] * 57 + [0] * 3 + [1] * 5 + [0] * 35}


def cost(speed: float | None = 1000.0, memory: int = 10**9) -> TrialCost:
    return TrialCost(
        train_tokens_per_second=speed,
        train_seconds=10.0,
        documents_per_second=4.0,
        peak_memory_bytes=memory,
        num_parameters=10**7,
    )


def trial(arm: str, correct: Sequence[int], seed: int = 1, fold: int = 0, **values: float) -> DownstreamTrial:
    """Returns a trial with a document for each number, 1 if it is predicted correctly; folds have other documents."""
    predictions = tuple(
        Prediction(
            document=f"d{fold}-{number:03}",
            num_tokens=700,
            labels=(LABELS[number % 2],),
            predicted=(LABELS[(number + 1 - is_correct) % 2],),
        )
        for number, is_correct in enumerate(correct)
    )
    score = 100 * sum(correct) / len(correct)
    return DownstreamTrial(
        arm=arm,
        values=values,
        seed=seed,
        fold=fold,
        settings_sha256="",
        dev_scores=(score - 1, score),
        predictions=predictions,
        cost=cost(),
    )


def task(arms: Sequence[str], **changed: object) -> ComparedTask:
    """Returns a task whose arm "tfidf" has no model; the first arm is the baseline."""
    settings = {name: Arm(model=None if name == "tfidf" else f"owner/{name}", length=512) for name in arms}
    facts = {"name": "news", "kind": "classification", "labels": LABELS, "is_multilabel": False, "num_documents": 300}
    facts |= {"num_set_aside": 7, "num_folds": None, "arms": settings, "baseline": arms[0]}
    return ComparedTask(**{**facts, **changed})


def comparison_of(arms: Mapping[str, Sequence[int]], failed: Mapping[str, str] | None = None) -> DownstreamComparison:
    """Returns the comparison of one trial per arm."""
    return compared(task([*arms]), [trial(arm, correct) for arm, correct in arms.items()], failed or {})


def labelled_prediction(number: int, found: Sequence[int], length: int | None = None) -> Prediction:
    """Returns a document of 1,000 tokens with entities at tokens 100, 500, 600 and 900, of which some are found.

    The arm reads its first `length` tokens, or all of them.
    """
    tokens = (100, 500, 600, 900)
    distances = [length - token if length and token < length else -1 for token in tokens]
    spans = tuple(LabelledSpan(4 * token, 4 * token + 3, "PER") for token in tokens)
    return Prediction(
        document=f"novel-{number}",
        num_tokens=1000,
        spans=spans,
        predicted_spans=tuple(spans[index] for index in found),
        token_starts=(*tokens, *(tokens[index] for index in found)),
        cut_distances=(*distances, *(distances[index] for index in found)),
    )


def labelling(*lengths: int) -> DownstreamComparison:
    """Returns the comparison of an arm that reads 510 tokens of each document with one that reads all of it.

    `lengths` are those that the trials record, if given.
    """
    trials = []
    for arm, found in (("truncate", (0, 1)), ("whole", (0, 2, 3))):
        read = 510 if arm == "truncate" else None
        predictions = tuple(labelled_prediction(number, found, read) for number in range(20))
        spans = tuple(
            SpanOutcome(
                text=f"Ms {name}",
                label="PER",
                token=token,
                is_read=arm == "whole" or token < 510,
                is_found=index in found,
                start=4 * token,
            )
            for index, (name, token) in enumerate(zip("ABCD", (100, 500, 600, 900), strict=True))
        )
        explained = (Explanation(document="novel-0", spans=spans),)
        trials.append(
            DownstreamTrial(
                arm=arm,
                values={},
                seed=1,
                fold=0,
                settings_sha256="",
                dev_scores=(50.0,),
                predictions=predictions,
                cost=cost(),
                explanations=explained,
            )
        )
    facts = task(["truncate", "whole"], name="novels", kind="labelling", labels=("PER",), num_documents=20)
    recorded = [replace(one, length=length) for one, length in zip(trials, lengths, strict=False)]
    return compared(facts, recorded or trials, {})


def explanation(*effects: float | None) -> Explanation:
    """Returns the effects of paragraphs; one without an effect was not read."""
    parts = tuple(
        OccludedPart(
            start=10 * number,
            end=10 * number + 9,
            excerpt=f"Paragraph {number} <b>",
            effect=effect or 0.0,
            is_read=effect is not None,
        )
        for number, effect in enumerate(effects)
    )
    return Explanation(document="d0-000", labels=("no",), predicted=("yes",), probability=81.2, parts=parts)
