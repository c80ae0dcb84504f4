"""metrics.jsonl: the record of a run, one line per logged step and one per evaluation."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from longmlm.artifacts.accuracy import Accuracy, Difference, FilledMask, Measured, PairAccuracy
from longmlm.artifacts.artifact import Artifact, dump, load, sha256_of_json
from longmlm.folders import parse_json
from longmlm.temporary import replaced_file

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class TargetMetrics:
    """Mean loss in nats and accuracy in percent of a target, such as mlm."""

    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics(Artifact):
    """Means over the steps since the previous line, by target; memory is the peak so far.

    `mfu` is the share of the devices' peak speed, `padding_percent` the padding in the model's input. `skipped_steps`
    counts the updates that fp16 has skipped so far; `gradient_norm` is None if all steps of this line were skipped.
    """

    kind: Literal["training"] = "training"
    step: int
    tokens: int
    targets: dict[str, TargetMetrics]
    learning_rate: float
    gradient_norm: float | None
    tokens_per_second: float
    elapsed_seconds: float
    memory_bytes: int = 0
    mfu: float | None = None
    padding_percent: float | None = None
    skipped_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetrics(Artifact):
    """Held-out accuracy at a step, of whole rows, per block and by source; that on pairs, if they are trained.

    `base_chunks` is the accuracy to recover, that of the base model on the same tokens in chunks of its length, and
    `recovery` the accuracy minus it, paired by row; `base_cut` is that on rows cut to its length, for reference only.
    Without a base model, they are None or empty. `recovered_at_step` is the step of the first of two consecutive
    evaluations that show that the run has recovered; it is set at the second.
    """

    REMEDY: ClassVar[str] = "train again, in another run folder"

    format: int = 3
    kind: Literal["evaluation"] = "evaluation"
    step: int
    tokens: int
    held_out: Measured
    base_chunks: float | None = None
    base_chunks_error: float | None = None
    base_chunks_by_source: dict[str, Accuracy] = field(default_factory=dict)
    base_chunks_by_occurrence: dict[str, Accuracy] = field(default_factory=dict)
    base_cut: float | None = None
    base_cut_error: float | None = None
    recovery: Difference | None = None
    recovered_at_step: int | None = None
    recovered_at_tokens: int | None = None
    examples: tuple[FilledMask, ...] = ()
    pairs: PairAccuracy | None = None


Metrics = TrainingMetrics | EvaluationMetrics


class MetricsFile:
    """The metrics of a run folder: written by training, read by reports."""

    def __init__(self, run: Path) -> None:
        self.path = run / METRICS_FILE

    def append(self, line: Metrics) -> None:
        """Appends one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dump(line)) + "\n")

    def lines(self) -> list[Metrics]:
        """Returns the lines written so far, without a last line that a crash cut short.

        Raises ArtifactError, which names the line, when any other line cannot be read.
        """
        return [line for _, line in self._parsed()]

    def evaluations(self) -> tuple[EvaluationMetrics, ...]:
        """Returns the evaluations, without their examples."""
        return tuple(replace(line, examples=()) for line in self.lines() if isinstance(line, EvaluationMetrics))

    def truncate(self, step: int, is_evaluated: bool = True) -> None:
        """Drops the lines after `step`, which a resumed run will write again; the others stay byte for byte.

        It also drops the evaluation of `step`, unless the checkpoint has its result (`is_evaluated`).
        """
        lines = [(text, line) for text, line in self._parsed() if line.step <= step]
        if not is_evaluated:
            lines = [(text, line) for text, line in lines if line.step < step or line.kind == "training"]
        kept = "".join(text for text, _ in lines)
        with replaced_file(self.path) as partial:
            partial.write_text(kept, encoding="utf-8")

    def _parsed(self) -> Iterator[tuple[str, Metrics]]:
        if not self.path.is_file():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, start=1):
                if text.endswith("\n"):
                    yield text, parse_line(text, f"{self.path}, line {number},")


def curve_sha256(curve: Sequence[EvaluationMetrics]) -> str:
    """Returns one SHA-256 of the evaluations during a run."""
    return sha256_of_json([*map(repr, curve)])


def parse_line(text: str | bytes, name: str) -> Metrics:
    """Returns one line of metrics, of the kind that it says; raises ArtifactError for anything else."""
    content: object = None
    with suppress(ValueError):  # `load` says what is wrong with it
        content = parse_json(text)
    is_evaluation = isinstance(content, dict) and content.get("kind") == "evaluation"
    return load(EvaluationMetrics if is_evaluation else TrainingMetrics, text, name)
