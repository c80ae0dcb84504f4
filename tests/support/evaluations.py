"""Evaluations that were changed and signed again."""

from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation


def forge(folder: Path, view: str, **values: object) -> Evaluation:
    """Changes the accuracy of a view on whole rows as if it had been measured so, and returns the evaluation."""
    path = folder / Evaluation.FILE
    evaluation = artifact.read(Evaluation, path)
    measured = replace(evaluation.measured[view], whole=replace(evaluation.measured[view].whole, **values))
    forged = replace(evaluation, measured=evaluation.measured | {view: measured}).signed()
    artifact.write(path, forged)
    return forged


def worse_on_short_texts(folder: Path, lost_per_row: int) -> Evaluation:
    """Changes long_after_cut to what base_cut is, less so many predictions per row; returns the evaluation."""
    path = folder / Evaluation.FILE
    evaluation = artifact.read(Evaluation, path)
    base = evaluation.measured["base_cut"]
    short = replace(base, correct=tuple(correct - lost_per_row for correct in base.correct))
    forged = replace(evaluation, measured={**evaluation.measured, "long_after_cut": short}).signed()
    artifact.write(path, forged)
    return forged
