"""evaluation.json: accuracies of base and long model on the same frozen masks, and what they were measured on."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from longmlm.artifacts.accuracy import FilledMask, Measured, upgraded_example
from longmlm.artifacts.artifact import Artifact, dump, load, read, upgraded
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.errors import ArtifactError
from longmlm.settings.held_out import HeldOut

ViewName = Literal["base_cut", "base_windows", "long_before", "long_after", "long_after_cut"]
VIEW_NAMES: tuple[ViewName, ...] = get_args(ViewName)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSources:
    """Where rows and models lie, and the hashes by which a release knows that the evaluation is about them."""

    __pydantic_config__ = {"extra": "forbid"}

    rows: str
    rows_sha256: str
    base: str
    before: str
    after: str | None = None
    base_revision: str | None = None
    before_revision: str | None = None
    after_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Artifact):
    """An evaluation: `measured` by view, `curve` from the run's metrics, `examples` filled in by the latest model.

    `position_starts` are the first positions of the bins in Measured.positions. `sha256` is the hash of all else.
    """

    FILE: ClassVar[str] = "evaluation.json"

    row_length: int
    base_positions: int
    position_starts: tuple[int, ...]
    num_rows: int
    held_out: HeldOut
    precision: Literal["no", "bf16"]
    sources: EvaluationSources
    measured: dict[ViewName, Measured]
    curve: tuple[EvaluationMetrics, ...] = ()
    examples: tuple[FilledMask, ...] = ()
    sha256: str = ""

    def accuracy(self, view: ViewName) -> float | None:
        """Returns the accuracy on whole rows in percent; None where the view or any selected token is missing."""
        return self.measured[view].whole.accuracy if view in self.measured else None

    @property
    def latest_view(self) -> ViewName:
        """The view of the whole row by the latest long model: long_after, or long_before until it is trained."""
        return "long_after" if "long_after" in self.measured else "long_before"

    @property
    def is_recovered(self) -> bool | None:
        """Whether long_after >= base_cut, as the numbers stand; None before training."""
        after, base = self.accuracy("long_after"), self.accuracy("base_cut")
        return None if after is None or base is None else after >= base

    @property
    def context_gain(self) -> float | None:
        """Percentage points that context beyond base_positions is worth: long_after - base_windows."""
        after, windows = self.accuracy("long_after"), self.accuracy("base_windows")
        return None if after is None or windows is None else after - windows

    def signed(self) -> Self:
        """Returns the evaluation with the hash of its content, by which a reader knows that nobody changed it."""
        return replace(self, sha256=self.content_sha256())

    def content_sha256(self) -> str:
        """Returns the SHA-256 of everything but `sha256` itself."""
        return _sha256_of(dump(self))

    @classmethod
    def upgrade(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Returns content of before format 1; raises ArtifactError where it was changed or lacks settings."""
        sources = dict(content["sources"])
        if "precision" not in sources or "held_out" not in content or "sha256" not in content:
            raise ArtifactError("it was written by an earlier version of longmlm: run the evaluate stage again")
        if content["sha256"] != _sha256_of(content):
            raise ArtifactError("it was changed after it was written: run the evaluate stage again")
        converted = {
            **{key: content[key] for key in ("row_length", "position_starts", "num_rows", "measured")},
            "format": 1,
            "longmlm": "unknown",
            "commit": None,
            "base_positions": content["block"],
            "held_out": {key: value for key, value in content["held_out"].items() if key != "rows_per_batch"},
            "precision": sources.pop("precision"),
            "sources": sources,
            "curve": [upgraded(EvaluationMetrics, line) for line in content["curve"]],
            "examples": [upgraded_example(example) for example in content["examples"]],
        }
        return dump(load(cls, json.dumps(converted), cls.FILE).signed())


def read_evaluation(path: Path) -> Evaluation:
    """Returns the evaluation in a file; raises ArtifactError also for one that was changed after it was written."""
    evaluation = read(Evaluation, path)
    if evaluation.sha256 != evaluation.content_sha256():
        raise ArtifactError(f"{path} was changed after it was written: run the evaluate stage again")
    return evaluation


def _sha256_of(content: dict[str, Any]) -> str:
    hashed = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
