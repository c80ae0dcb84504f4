"""longmlm.json: where the model next to it comes from, how it was extended, and what it was trained on."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Self

from longmlm.artifacts.accuracy import PairAccuracy
from longmlm.artifacts.artifact import Artifact, Input, MadeFrom, read
from longmlm.errors import counted
from longmlm.settings.extend import (
    NUM_GLOBAL_TOKENS,
    SMOOTH_TERMS,
    STARTS_FROM_FIT,
    USED_BY,
    Distillation,
    ExtendRecipe,
    Initialisation,
    PositionMode,
)
from longmlm.settings.masking import HeldOut, PairKind
from longmlm.settings.pretrain import ComputePrecision
from longmlm.settings.publishing import TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model by its folder or hub name; `revision` is the commit of a model on the hub.

    `requested` is the branch, tag or commit that was asked for, and `sha256` the hash of a model in a folder.
    """

    name: str
    revision: str | None = None
    sha256: str | None = None
    requested: str | None = None

    @property
    def as_input(self) -> Input:
        """The model as an input of a result; the revision that was asked for is a part of its name."""
        return Input(
            f"{self.name}@{self.requested}" if self.requested else self.name, self.sha256 or self.revision or ""
        )

    @property
    def public_name(self) -> str:
        """The hub name, or the last part of a local folder's path."""
        return self.name if self.revision else Path(self.name).name

    @property
    def on_modelscope(self) -> str | None:
        """OWNER/NAME of a model on ModelScope; None for any other."""
        named = TARGET.fullmatch(self.name)
        return named["repository"] if self.revision and named and named["hub"] == "ms" else None

    def published(self) -> Self:
        """Returns the source as a release names it."""
        return replace(self, name=self.public_name, sha256=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """What a distillation used: the rows, and the resolved number of layers, window and precision.

    `flop_ratio` bounds the FLOP per distillation token, relative to a training token. `relative_error` is the mean of
    the last 20 steps: the sum of squared differences over that of squared states.
    """

    layers: int
    window: int
    precision: ComputePrecision
    tokens: int
    flop_ratio: float
    rows_sha256: str
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """How a base model was extended from `base_positions` to `num_positions`; neither counts reserved rows.

    `attention_window` is the number of tokens on each side that a token attends to; None for full attention. Only the
    `local_layers` lowest layers attend within it; None for all.
    """

    base: ModelSource
    base_positions: int
    num_positions: int
    initialisation: Initialisation
    alpha: float
    seed: int
    smooth_terms: int = SMOOTH_TERMS
    distillation: Distillation = field(default_factory=Distillation)
    distilled: Distilled | None = None
    mode: PositionMode = "materialized"
    attention_window: int | None = None
    local_layers: int | None = None
    num_global_tokens: int = NUM_GLOBAL_TOKENS

    @classmethod
    def of(cls, recipe: ExtendRecipe, base: ModelSource, base_positions: int) -> Self:
        """Returns the extension that the recipe makes of a model with `base_positions`."""
        kept = {
            item.name: getattr(recipe, item.name) for item in fields(recipe) if item.name in cls.__dataclass_fields__
        }
        kept["num_positions"] = recipe.num_positions or base_positions
        return cls(base=base, base_positions=base_positions, **kept)

    @property
    def changes_trained_rows(self) -> bool:
        """Whether trained rows change, and with them the logits on short inputs."""
        return self.initialisation in STARTS_FROM_FIT

    @property
    def attention(self) -> str | None:
        """The window in words; None for full attention."""
        if self.attention_window is None:
            return None
        layers = f" in the {self.lowest_layers}" if self.local_layers else ""
        return f"{counted(self.attention_window, 'token')} on each side{layers}, {self.num_global_tokens} global"

    @property
    def lowest_layers(self) -> str:
        """The only layers that attend within the window, such as "3 lowest layers"; empty for all."""
        return lowest_layers(self.local_layers) if self.local_layers else ""

    @property
    def description(self) -> str:
        """The initialisation with alpha, if it has one, and its settings that are not the default."""
        own = {name: getattr(self, name) for name, users in USED_BY.items() if self.initialisation in users}
        own.pop("distillation", None)
        shown = [f"{name} {value}" for name, value in own.items() if (name, value) != ("smooth_terms", SMOOTH_TERMS)]
        if self.distilled:
            layers = lowest_layers(self.distilled.layers)
            shown.append(f"{layers}, teacher window {self.distilled.window}, {self.distilled.tokens:,} tokens")
        return ", ".join([self.initialisation, *shown])


def lowest_layers(number: int) -> str:
    """Returns "lowest layer" or, for several, for example "3 lowest layers"."""
    return "lowest layer" if number == 1 else f"{number} lowest layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTokens:
    """Tokens added to a base model: the SHA-256 of the file of terms, and how many were added and skipped."""

    base: ModelSource
    file_sha256: str
    num_added: int
    num_skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What a model was trained on, and its held-out accuracy in percent at that step, if it was evaluated there.

    `precision`, `held_out` and `rows_sha256` say how the accuracy was measured, if that is known. `rows` names rows on
    a hub. `exported_accuracy` is that of the released files themselves. `pairs` is the kind of pairs that the model was
    trained on too, `pair_accuracy` its accuracy on those held out. With `isolate_documents`, no token attended to
    another document of its row.
    """

    row_length: int
    steps: int
    tokens: int
    accuracy: float | None = None
    precision: ComputePrecision | None = None
    held_out: HeldOut | None = None
    rows: str | None = None
    rows_sha256: str | None = None
    files_sha256: tuple[str, ...] = ()
    dataset_commits: tuple[str, ...] = ()
    exported_accuracy: float | None = None
    isolate_documents: bool = False
    pairs: PairKind | None = None
    pair_accuracy: PairAccuracy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Artifact):
    """The history of a model; empty for a model that longmlm neither extended nor trained."""

    FILE: ClassVar[str] = "longmlm.json"

    extension: Extension | None = None
    added_tokens: AddedTokens | None = None
    started_from: ModelSource | None = None
    trained: TrainingRecord | None = None
    trained_before: tuple[TrainingRecord, ...] = ()

    @property
    def source(self) -> ModelSource | None:
        """The base model, or the model that training started from if extend did not write this one."""
        extended = self.extension or self.added_tokens
        return extended.base if extended else self.started_from

    @property
    def is_extended(self) -> bool:
        """Whether extend wrote this model, or the one that its training started from."""
        return self.extension is not None or self.added_tokens is not None

    @property
    def made_from(self) -> MadeFrom:
        """What extend made the model from; it records no new_head."""
        extension, tokens, base = self.extension, self.added_tokens, self.source
        recorded = asdict(extension) if extension else {}
        recipe = {item.name: recorded.get(item.name) for item in fields(ExtendRecipe)}
        distilled = extension.distilled if extension else None
        terms = tokens if tokens and tokens.base == base else None  # else they are the base model's own
        return MadeFrom.of(
            {"recipe": recipe},
            {
                "base": base.as_input if base else None,
                "rows": Input(content=distilled.rows_sha256) if distilled else None,
                "recipe.add_tokens": Input(content=terms.file_sha256) if terms else None,
            },
        )

    @property
    def isolates_documents(self) -> bool:
        """Whether the model was trained, in its last run, to read each document of a row by itself."""
        return self.trained is not None and self.trained.isolate_documents

    @property
    def pairs(self) -> PairKind | None:
        """The kind of pairs that its last run trained on; None for a run without pairs."""
        return self.trained.pairs if self.trained else None

    @property
    def pair_accuracy(self) -> PairAccuracy | None:
        """The accuracy on held-out pairs at the end of that run; None if it was not measured there."""
        return self.trained.pair_accuracy if self.trained else None

    @property
    def first_epoch(self) -> int:
        """The epoch from which the run counts those of masks and pairs, so that they differ from those of earlier runs.

        It is the number of tokens that these were trained on, which is at least the epochs of any row.
        """
        return sum(record.tokens for record in self.trained_before)

    def of_run(self, start: ModelSource) -> Self:
        """Returns the history of a run that starts from the model at `start`, whose own history this is."""
        before = (*self.trained_before, *((self.trained,) if self.trained else ()))
        return replace(self, started_from=start, trained=None, trained_before=before)

    def exported(self, accuracy: float) -> Self:
        """Returns the history with the accuracy of the released files themselves."""
        return replace(self, trained=self.trained and replace(self.trained, exported_accuracy=accuracy))

    def published(self) -> Self:
        """Returns the history for a release, in which a local folder is only the last part of its path."""
        extension, added = (
            part and replace(part, base=part.base.published()) for part in (self.extension, self.added_tokens)
        )
        started = self.started_from and self.started_from.published()
        return replace(self, extension=extension, added_tokens=added, started_from=started)


def read_provenance(folder: str | Path) -> Provenance:
    """Returns the history of the model in a local folder; an empty one if the folder has no longmlm.json.

    Raises ArtifactError for a file that cannot be read.
    """
    path = Path(folder) / Provenance.FILE
    return read(Provenance, path) if path.exists() else Provenance()
