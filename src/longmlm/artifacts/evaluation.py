"""evaluation.json: the accuracies of base and long model under the same masks, and what they were measured on."""

import hashlib
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from longmlm.artifacts.accuracy import (
    Accuracy,
    Difference,
    FilledMask,
    Measured,
    paired_difference,
    row_difference,
)
from longmlm.artifacts.artifact import PAGE_FILE, Artifact, Json, dump, read, without
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.errors import ArtifactError, ReleaseError
from longmlm.folders import check_replaceable, replaced_folder
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.pretrain import ComputePrecision

ViewName = Literal["base_cut", "base_windows", "long_before", "long_after", "long_after_cut"]
VIEW_NAMES: tuple[ViewName, ...] = get_args(ViewName)
REMEDY = "run the evaluate stage again"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSources:
    """The rows and models by path or name, and the hashes of those in folders.

    `before_sha256` and `after_sha256` are the hashes of weights, `base_sha256` is that of the whole model.
    """

    rows: str
    rows_sha256: str
    base: str
    before: str | None = None
    after: str | None = None
    base_revision: str | None = None
    before_revision: str | None = None
    after_sha256: str | None = None
    base_sha256: str | None = None
    before_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetGain:
    """Both accuracies on the tokens at offsets `first` to `last`, counted from the start of their document in the row.

    `gain` is long_after - base_windows, paired by row; None if no token was selected.
    """

    first: int
    last: int
    base_windows: Accuracy
    long_after: Accuracy
    gain: Difference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Artifact):
    """Accuracies by view, the run's curve, and masks filled in by the latest long model.

    `position_starts` are the first positions of the bins in Measured.positions, `precision` is that of the computation.
    `sha256` is the hash of the content.
    """

    FILE: ClassVar[str] = "evaluation.json"

    row_length: int
    base_positions: int
    position_starts: tuple[int, ...]
    num_rows: int
    recipe: EvaluateRecipe
    precision: ComputePrecision
    sources: EvaluationSources
    measured: dict[ViewName, Measured]
    gains: tuple[OffsetGain, ...] = ()
    curve: tuple[EvaluationMetrics, ...] = ()
    examples: tuple[FilledMask, ...] = ()
    sha256: str = ""

    @property
    def held_out(self) -> HeldOut:
        """The rows that were measured, and their masks."""
        return self.recipe.held_out

    def accuracy(self, view: ViewName) -> float | None:
        """Returns the accuracy on whole rows in percent; None if the view was not measured or no token selected."""
        return self.measured[view].whole.accuracy if view in self.measured else None

    @property
    def latest_view(self) -> ViewName:
        """The latest long model's view of whole rows: long_after, or long_before until it is trained."""
        return "long_after" if "long_after" in self.measured else "long_before"

    @property
    def is_recovered(self) -> bool | None:
        """Whether long_after >= base_cut; None before training."""
        after, base = self.accuracy("long_after"), self.accuracy("base_cut")
        return None if after is None or base is None else after >= base

    @property
    def recovery(self) -> Difference | None:
        """long_after - base_cut with its standard error; None before training."""
        if "long_after" not in self.measured or "base_cut" not in self.measured:
            return None
        return row_difference(self.measured["long_after"], self.measured["base_cut"])

    @property
    def short_text_change(self) -> Difference | None:
        """long_after_cut - base_cut with its standard error, paired by row if possible; None if not measured."""
        if "long_after_cut" not in self.measured or "base_cut" not in self.measured:
            return None
        after, base = self.measured["long_after_cut"], self.measured["base_cut"]
        return paired_difference([after], [base]) or row_difference(after, base)

    @property
    def is_worse_on_short_texts(self) -> bool:
        """Whether training cost accuracy on rows cut to the base model's length, by two standard errors or more."""
        change = self.short_text_change
        return change is not None and change.points < 0 and not change.is_within_error

    @property
    def context_gain(self) -> float | None:
        """Percentage points gained by context beyond base_positions: long_after - base_windows."""
        after, windows = self.accuracy("long_after"), self.accuracy("base_windows")
        return None if after is None or windows is None else after - windows

    @property
    def context_gain_error(self) -> float | None:
        """The standard error of `context_gain`, paired by row; None in evaluations of early versions."""
        sides = [[self.measured[name]] for name in ("long_after", "base_windows") if name in self.measured]
        paired = paired_difference(*sides) if len(sides) == 2 else None  # noqa: PLR2004 - both
        return None if paired is None else paired.standard_error

    def signed(self) -> Self:
        """Returns the evaluation with the hash of its content, by which a reader knows that nobody changed it."""
        return replace(self, sha256=_sha256_of(dump(self)))


def read_evaluation(path: Path) -> Evaluation:
    """Returns the evaluation in a file, signed; raises ArtifactError if it was changed after it was written."""
    evaluation, content = read(Evaluation, path), json.loads(path.read_bytes())
    if content.get("sha256") != _sha256_of(content):
        raise ArtifactError(f"{path} was changed after it was written: {REMEDY}")
    return evaluation.signed()


def evaluation_in(folder: Path) -> Evaluation:
    """Returns the evaluation that a stage wrote into the folder; raises ReleaseError if there is none."""
    if not (folder / Evaluation.FILE).is_file():
        raise ReleaseError(f"{folder / Evaluation.FILE} does not exist: run the evaluate stage first")
    return read_evaluation(folder / Evaluation.FILE)


def _sha256_of(content: Json) -> str:
    """Returns the SHA-256 of all but itself and of what writing the file again may change."""
    hashed = without(content, "sha256", "longmlm", "commit")
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


BLOCKS_PICTURE, RECOVERY_PICTURE = "blocks.png", "recovery.png"


PICTURES = (BLOCKS_PICTURE, RECOVERY_PICTURE)


FILES = (Evaluation.FILE, PAGE_FILE, *PICTURES)


def check_output(folder: Path) -> None:
    """Raises FolderError when `folder` holds anything other than an earlier evaluation."""
    check_replaceable(folder, FILES)


def evaluation_folder(folder: Path) -> AbstractContextManager[Path]:
    """Returns a context with an empty folder to write an evaluation into, which then takes the place of an earlier one.

    Raises FolderError as `check_output` does, and while another process evaluates into the same folder.
    """
    return replaced_folder(folder, FILES)
