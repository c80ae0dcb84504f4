"""metrics.jsonl: the record of a run, one line per logged step and one per evaluation."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from longmlm.artifacts.accuracy import FilledMask, Measured, upgraded_example
from longmlm.artifacts.artifact import Artifact, dump, load
from longmlm.errors import ArtifactError
from longmlm.folders import PARTIAL

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics(Artifact):
    """Means over the steps since the line before: loss in nats, accuracy in percent; memory is the peak so far."""

    kind: Literal["training"] = "training"
    step: int
    tokens: int
    loss: float
    accuracy: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    elapsed_seconds: float
    memory_bytes: int = 0
    mfu: float | None = None

    @classmethod
    def upgrade(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Returns a line of before format 1, which had no kind."""
        return {"kind": "training", **content}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetrics(Artifact):
    """Held-out accuracy at a step, whole and per block; `base_cut` is what training must win back."""

    kind: Literal["evaluation"] = "evaluation"
    step: int
    tokens: int
    held_out: Measured
    base_cut: float | None = None
    recovered_at_step: int | None = None
    recovered_at_tokens: int | None = None
    examples: tuple[FilledMask, ...] = ()

    @classmethod
    def upgrade(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Returns a line of before format 1, which had no kind, and NaN where no token was selected."""
        held_out = content["held_out"]
        measured = {
            "whole": _without_nan(held_out["whole"]),
            "blocks": [_without_nan(block) for block in held_out["blocks"]],
        }
        examples = [upgraded_example(example) for example in content.get("examples", ())]
        return {"kind": "evaluation", **content, "held_out": measured, "examples": examples}


def _without_nan(accuracy: dict[str, float | None]) -> dict[str, float | None]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in accuracy.items()}


Metrics = TrainingMetrics | EvaluationMetrics


class MetricsFile:
    """The metrics of a run folder: appended to by training, read by reports and trackers."""

    def __init__(self, run: Path) -> None:
        self.path = run / METRICS_FILE

    def append(self, line: Metrics) -> None:
        """Adds one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dump(line)) + "\n")

    def lines(self) -> list[Metrics]:
        """Returns the lines written so far; a last line that a crash cut short is left out."""
        return [line for _, line in self._parsed()]

    def evaluations(self) -> tuple[EvaluationMetrics, ...]:
        """Returns the evaluations, without their examples."""
        return tuple(replace(line, examples=()) for line in self.lines() if isinstance(line, EvaluationMetrics))

    def truncate(self, step: int) -> None:
        """Drops the lines beyond `step`, which a resumed run will write again; others are kept as they are."""
        kept = "".join(text for text, line in self._parsed() if line.step <= step)
        partial = self.path.with_name(self.path.name + PARTIAL)
        partial.write_text(kept, encoding="utf-8")
        partial.replace(self.path)

    def _parsed(self) -> Iterator[tuple[str, Metrics]]:
        if not self.path.is_file():
            return
        for number, text in enumerate(self.path.read_text(encoding="utf-8", errors="replace").splitlines(True), 1):
            if text.endswith("\n"):
                try:
                    yield text, parse_line(text, f"{self.path}, line {number}")
                except ArtifactError:
                    continue


def parse_line(text: str | bytes, name: str) -> Metrics:
    """Returns one line of metrics; raises ArtifactError for anything else."""
    try:
        is_evaluation = "held_out" in json.loads(text)
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{name} is damaged: it is no JSON") from error
    return load(EvaluationMetrics if is_evaluation else TrainingMetrics, text, name)
