"""Writes docs/experiments/downstream.json, what comparisons on labelled tasks found, and prints it as a table.

    python docs/experiments/scripts/downstream_study.py NAME=OUTPUT/downstream/downstream.json ...

Scores and differences are in percent and percentage points with 95 % intervals; a difference is from the baseline arm.
Tasks that are not named stay in the file as they are.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import ArmResult, DownstreamComparison, Score

STUDY = Path(__file__).parents[1] / "downstream.json"


def task_entry(found: DownstreamComparison) -> dict[str, object]:
    """Returns the task and the result of each arm."""
    task = found.task
    return {
        "kind": "labelling" if task.target == "spans" else "classification",
        "documents": task.num_documents,
        "folds": task.num_folds,
        "baseline": task.baseline,
        "failed_trials": len(found.failed),
        "arms": {arm.arm: arm_entry(arm) for arm in found.arms},
    }


def arm_entry(arm: ArmResult) -> dict[str, object]:
    """Returns the scores of an arm, and its differences from the baseline and from TF-IDF."""
    return {
        "values": arm.values,
        "seeds": len(arm.seeds),
        "documents": arm.num_documents,
        "scores": [rounded(score) for score in arm.scores],
        "differences": [rounded(score) for score in arm.differences],
        "over_tfidf": arm.over_tfidf and rounded(arm.over_tfidf),
    }


def rounded(score: Score) -> dict[str, object]:
    """Returns a score with two decimals."""
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(score).items()}


def table(tasks: dict[str, DownstreamComparison]) -> str:
    """Returns a Markdown table of the main metric of each arm of each task."""
    lines = ["| task | arm | metric | score | difference | over TF-IDF |", "|---|---|---|---:|---:|---:|"]
    for name, found in tasks.items():
        for arm in found.arms:
            difference = next(iter(arm.differences), None)
            metric, score = arm.scores[0].metric, in_words(arm.scores[0])
            is_baseline = arm.arm == found.task.baseline
            row = [name, arm.arm, metric, score, "baseline" if is_baseline else in_words(difference, signed=True)]
            lines.append(f"| {' | '.join([*row, in_words(arm.over_tfidf, signed=True)])} |")
    return "\n".join(lines)


def in_words(score: Score | None, signed: bool = False) -> str:
    """Returns the mean and its interval."""
    if score is None or score.mean is None:
        return ""
    form = "+.1f" if signed else ".1f"
    interval = "" if score.low is None else f" [{score.low:{form}}, {score.high:{form}}]"
    return f"{score.mean:{form}}{interval}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", metavar="NAME=FILE")
    named = dict(one.split("=", 1) for one in parser.parse_args().tasks)
    found = {name: artifact.read(DownstreamComparison, Path(file)) for name, file in named.items()}
    study = json.loads(STUDY.read_text(encoding="utf-8")) if STUDY.is_file() else {}
    study |= {name: task_entry(one) for name, one in found.items()}
    STUDY.write_text(json.dumps(study, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(found))
