"""fine_tuned.json: what a release needs to know of a fine-tuned model, in the folder that holds the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from longmlm.artifacts.artifact import Artifact

MODEL = "model"  # the folder of the model, beside this file


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuned(Artifact):
    """What transformers loads the model with, what it reads, and what its card says.

    `num_tokens` is the longest input, special tokens included; texts are cut on the `truncation_side`, or read in
    windows that have `stride` tokens in common. `score` is the `metric` on the test documents, in percent; `data` names
    the files or the dataset. `about`, `reading`, `scores`, `training` and `comparison` are Markdown. `problem` says why
    the model cannot be released; it is empty if it can.
    """

    FILE: ClassVar[str] = "fine_tuned.json"

    auto_class: Literal["AutoModelForSequenceClassification", "AutoModelForTokenClassification"]
    num_tokens: int
    truncation_side: Literal["left", "right"] = "right"
    stride: int | None = None
    labels: tuple[str, ...]
    metric: str
    score: float
    data: tuple[str, ...]
    about: str
    reading: str
    scores: str
    training: str
    comparison: str = ""
    problem: str = ""


def fine_tuned_folder(name: str) -> Path | None:
    """Returns the folder of the fine-tuned model that a name means, or that of its weights; None for anything else."""
    candidates = (Path(name), Path(name).parent)
    return next((folder for folder in candidates if (folder / FineTuned.FILE).is_file()), None)
