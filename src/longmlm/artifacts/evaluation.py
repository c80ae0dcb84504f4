"""evaluation.json: the accuracies of base and long model under the same masks, and what they were measured on."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from longmlm.artifacts.accuracy import (
    Difference,
    FilledMask,
    Grouping,
    Measured,
    PairAccuracy,
    has_recovered,
    row_difference,
)
from longmlm.artifacts.artifact import PAGE_FILE, Artifact, Input, Json, MadeFrom, dump, read
from longmlm.artifacts.metrics import EvaluationMetrics, curve_sha256
from longmlm.errors import ArtifactError
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.pretrain import ComputePrecision

ViewName = Literal["base_cut", "base_chunks", "long_before", "long_after", "long_after_cut"]
VIEW_NAMES: tuple[ViewName, ...] = get_args(ViewName)
BLOCKS_PICTURE, RECOVERY_PICTURE = PICTURES = ("blocks.png", "recovery.png")


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
class Evaluation(Artifact):
    """Accuracies by view, the run's curve, and masks filled in by the latest long model.

    `pairs` is the accuracy on pairs of the model after training, if it was trained on some and the rows have them.
    `position_starts` are the first positions of the bins in Measured.positions, `precision` is that of the computation.
    `gains` are long_after - base_chunks for each group of the selected tokens, paired by row; None for a group that
    fewer than two rows have, and empty if one was not measured. In `isolated` views, the model read each document of a
    row by itself. `sha256` is the hash of the content.
    """

    FILE: ClassVar[str] = "evaluation.json"
    REMEDY: ClassVar[str] = "run the evaluate stage again"

    format: int = 3
    row_length: int
    base_positions: int
    position_starts: tuple[int, ...]
    num_rows: int
    recipe: EvaluateRecipe
    precision: ComputePrecision
    sources: EvaluationSources
    measured: dict[ViewName, Measured]
    gains: dict[Grouping, dict[str, Difference | None]] = field(default_factory=dict)
    curve: tuple[EvaluationMetrics, ...] = ()
    examples: tuple[FilledMask, ...] = ()
    isolated: tuple[ViewName, ...] = ()
    pairs: PairAccuracy | None = None
    sha256: str = ""

    @property
    def made_from(self) -> MadeFrom:
        """The recipe; the rows, models and curve."""
        sources = self.sources
        return MadeFrom.of(
            {"recipe": asdict(self.recipe)},
            {
                "rows": Input(content=sources.rows_sha256),
                "base": Input(sources.base, sources.base_sha256 or ""),
                "long_before": Input(sources.before, sources.before_sha256 or "") if sources.before else None,
                "long_after": Input(sources.after, sources.after_sha256 or "") if sources.after else None,
                "run": Input(content=curve_sha256(self.curve)),
            },
        )

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

    def difference(self, view: ViewName, base: ViewName, source: str | None = None) -> Difference | None:
        """Returns the accuracy of a view minus another's, with its standard error; None if one was not measured.

        With the name of a source, only the rows of that source count.
        """
        if view not in self.measured or base not in self.measured:
            return None
        sides = (self.measured[view], self.measured[base])
        return row_difference(*(side if source is None else side.sources[source] for side in sides))

    @property
    def is_at_own_length(self) -> bool:
        """Whether the base model reads whole rows."""
        return self.base_positions == self.row_length

    @property
    def to_recover(self) -> ViewName:
        """The view with the accuracy to recover: the base model on the same tokens as long_after."""
        return "base_cut" if self.is_at_own_length else "base_chunks"

    @property
    def recovery(self) -> Difference | None:
        """long_after minus the accuracy to recover; None before training."""
        return self.difference("long_after", self.to_recover)

    @property
    def is_recovered(self) -> bool | None:
        """Whether long_after has recovered (`has_recovered`); None before training."""
        return has_recovered(self.recovery)

    @property
    def short_text_change(self) -> Difference | None:
        """long_after_cut - base_cut; None if not measured."""
        return self.difference("long_after_cut", "base_cut")

    @property
    def is_worse_on_short_texts(self) -> bool:
        """Whether training cost accuracy on rows cut to the base model's length, by two standard errors or more."""
        return self.short_text_change is not None and self.short_text_change.is_loss

    def with_accuracy(self, view: ViewName, accuracy: float) -> Self:
        """Returns the evaluation with another accuracy of a view on whole rows, in percent."""
        one = self.measured[view]
        changed = replace(one, whole=replace(one.whole, accuracy=accuracy))
        return replace(self, measured={**self.measured, view: changed})

    def signed(self) -> Self:
        """Returns the evaluation with the hash of its content, by which a reader knows that nobody changed it."""
        return replace(self, sha256=_sha256_of(dump(self)))


def read_evaluation(path: Path) -> Evaluation:
    """Returns the evaluation in a file; raises ArtifactError if there is none, or if it was changed later."""
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist: run the evaluate stage first")
    evaluation, content = read(Evaluation, path), json.loads(path.read_bytes())
    if evaluation.sha256 != _sha256_of(content):
        raise ArtifactError(f"{path} was changed after it was written: run the evaluate stage again")
    return evaluation


def _sha256_of(content: Json) -> str:
    """Returns the SHA-256 of all but itself and of what writing the file again may change."""
    hashed = {key: value for key, value in content.items() if key not in ("sha256", "longmlm", "commit")}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


EVALUATION_FILES = (Evaluation.FILE, PAGE_FILE, *PICTURES)  # what the folder of an evaluation holds
