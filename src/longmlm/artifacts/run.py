"""Artifacts of a run: state.json in each checkpoint, and summary.json in the run folder."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured, PairAccuracy, first_recovered, row_difference
from longmlm.artifacts.artifact import Artifact, Input, MadeFrom
from longmlm.artifacts.rows import RowsPlan
from longmlm.errors import counted
from longmlm.settings.pretrain import ComputePrecision, PretrainRecipe

ALL = 100.0  # in percent
SAVED_BYTES = 12  # of a parameter in a checkpoint: the weight and AdamW's two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """How many rows of a micro-batch fit into memory, and where.

    `device` is "cpu" or a GPU's name; `is_recomputed` says whether activations are recomputed.
    """

    num_rows: int
    num_processes: int
    device: str
    is_recomputed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Progress of a run after `step` updates; accuracies are masked-token accuracies in percent.

    `cursor` and `tokens` count the rows consumed by all ranks, and their tokens. `skipped_steps` counts the updates
    that fp16 skipped, `skipped_in_a_row` those since the last update that was applied. `accuracy` is from the latest
    evaluation, at `evaluated_at_step`; `best_accuracy` is the highest after an update, the first of equal ones.
    `base_chunks` is what the base model reaches on the same tokens in chunks of its length, `recovery` the latest
    accuracy minus that, paired by row; `base_cut` is what it reaches on the rows cut to its length. They are None if
    there is no base model. `recovered_at_step` is the first of two evaluations in a row that have recovered.
    `pairs` is the accuracy on pairs of the latest evaluation; None if no pairs are trained, or none are held out.
    `micro_batch` is that of the latest update; None if the user set its size.
    """

    step: int = 0
    cursor: int = 0
    tokens: int = 0
    training_seconds: float = 0.0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    base_chunks: Measured | None = None
    base_cut: Accuracy | None = None
    accuracy: float | None = None
    recovery: Difference | None = None
    evaluated_at_step: int | None = None
    evaluated_at_tokens: int | None = None
    recovered_at_step: int | None = None
    recovered_at_tokens: int | None = None
    best_accuracy: float | None = None
    best_at_step: int | None = None
    pairs: PairAccuracy | None = None
    micro_batch: MicroBatch | None = None

    def __post_init__(self) -> None:
        steps = (self.evaluated_at_step, self.recovered_at_step, self.best_at_step, self.skipped_steps)
        if any(step > self.step for step in steps if step is not None) or self.skipped_in_a_row > self.skipped_steps:
            raise ValueError(f"it names a later step than its own, {self.step}")
        chunks, cut = self.base_chunks.whole if self.base_chunks else None, self.base_cut
        percentages = (*(base.accuracy for base in (chunks, cut) if base), self.accuracy, self.best_accuracy)
        if any(abs(percentage) > ALL for percentage in percentages if percentage is not None):
            raise ValueError("an accuracy is not a percentage")
        if self.training_seconds < 0:
            raise ValueError("training_seconds must not be negative")

    def after_update(self, num_rows: int, num_tokens: int, seconds: float, is_skipped: bool = False) -> Self:
        """Returns the state after one more update, applied or skipped."""
        return replace(
            self,
            step=self.step + 1,
            cursor=self.cursor + num_rows,
            tokens=self.tokens + num_tokens,
            training_seconds=self.training_seconds + seconds,
            skipped_steps=self.skipped_steps + is_skipped,
            skipped_in_a_row=self.skipped_in_a_row + 1 if is_skipped else 0,
        )

    def after_evaluation(self, held_out: Measured, pairs: PairAccuracy | None = None) -> Self:
        """Returns the state with the accuracies at this step.

        If this evaluation and the one before show that the run has recovered, the earlier step is recorded for good.
        """
        accuracy = held_out.whole.accuracy
        recovery = row_difference(held_out, self.base_chunks) if self.base_chunks else None
        evaluated = replace(self, accuracy=accuracy, recovery=recovery, pairs=pairs)
        evaluated = replace(evaluated, evaluated_at_step=self.step, evaluated_at_tokens=self.tokens)
        if self.step and accuracy is not None and (self.best_accuracy is None or accuracy > self.best_accuracy):
            evaluated = replace(evaluated, best_accuracy=accuracy, best_at_step=self.step)
        if self.recovered_at_step is not None or first_recovered([self.recovery, recovery]) is None:
            return evaluated
        return replace(
            evaluated, recovered_at_step=self.evaluated_at_step, recovered_at_tokens=self.evaluated_at_tokens
        )

    @property
    def accuracy_here(self) -> float | None:
        """The held-out accuracy at this step; None unless the step was evaluated."""
        return self.accuracy if self.evaluated_at_step == self.step else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Steps that were added to a finished run: `num_steps` after `from_step`."""

    from_step: int
    num_steps: int

    @property
    def last_step(self) -> int:
        """The step at which the run ends, unless it is continued again."""
        return self.from_step + self.num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState(Artifact):
    """What a checkpoint holds in addition to tensors: progress, and all that a resumed run must agree with.

    `precision` is the one that the run computes in; `rows` names them as the run read them, those on the hub at their
    commit. `num_threads` is that of each process, on CPUs. `rows_plan`
    is what the rows depend on, `architecture_sha256` the hash of the config.json that an untrained model started from.
    `first_cursor` is the one at which the run began: rows before it were read by the run that it started from.
    `continuations` are the steps that were added to those of the recipe, the latest last.

    A format stands for an order of the rows too: since 2, it is drawn from a stream of random bits of its own.
    """

    FILE: ClassVar[str] = "state.json"
    REMEDY: ClassVar[str] = "train again, in another run folder"

    format: int = 3
    state: TrainState
    recipe: PretrainRecipe
    rows_sha256: str
    rows: str | None = None
    precision: ComputePrecision | None = None
    num_threads: int | None = None
    rows_plan: RowsPlan | None = None
    architecture_sha256: str | None = None
    first_cursor: int = 0
    continuations: tuple[Continuation, ...] = ()

    @property
    def num_steps(self) -> int:
        """The number of steps of the whole run."""
        return total_steps(self.recipe, self.continuations)

    def is_finished(self, stop_when_recovered: bool) -> bool:
        """Returns `is_finished` of the run at this checkpoint."""
        return is_finished(self.state, self.recipe, self.continuations, stop_when_recovered)

    def with_added_steps(self, num_steps: int, stop_when_recovered: bool) -> tuple[Continuation, ...]:
        """Returns the continuations and a new one of `num_steps`, or only the old ones if that one was interrupted.

        Raises ValueError, which says how many steps were made, if other steps of the run are not finished.
        """
        if self.is_finished(stop_when_recovered):
            return (*self.continuations, Continuation(from_step=self.state.step, num_steps=num_steps))
        if self.continuations and self.continuations[-1].num_steps == num_steps:
            return self.continuations
        added = f", of which {self.continuations[-1].num_steps:,} were added" if self.continuations else ""
        made = f"it has made {self.state.step:,} of {counted(self.num_steps, 'step')}{added}"
        raise ValueError(f"{made}, but has not evaluated the last one" if self.state.step >= self.num_steps else made)

    @property
    def inputs(self) -> dict[str, Input]:
        """The rows, and the architecture that an untrained model started from."""
        architecture = (
            {"start.architecture": Input(content=self.architecture_sha256)} if self.architecture_sha256 else {}
        )
        return {"rows": Input(content=self.rows_sha256), **architecture}

    def compared(self, recipe: PretrainRecipe) -> tuple[MadeFrom, MadeFrom]:
        """Returns the settings of the run's recipe, and those of another one.

        An `auto` precision is the one that the run computes in; num_steps may differ as long as no learning rate so far
        depended on it.
        """
        before = replace(self.recipe, precision=self.precision or self.recipe.precision)
        now = replace(recipe, precision=before.precision) if recipe.precision == "auto" else recipe
        may_change = ["recipe.num_steps"] if all(one.is_constant(self.state.step) for one in (before, now)) else []
        recorded, expected = (MadeFrom.of({"recipe": asdict(one)}, {}).without(*may_change) for one in (before, now))
        return recorded, expected


def total_steps(recipe: PretrainRecipe, continuations: Sequence[Continuation]) -> int:
    """Returns the number of steps of a run with this recipe and these continuations."""
    return continuations[-1].last_step if continuations else recipe.num_steps


def recovered_before_continuation(state: TrainState, continuations: Sequence[Continuation]) -> bool:
    """Returns whether a run had recovered before it was continued; if so, it makes all added steps.

    If the first of the two evaluations is the last one before it was continued, the second one is in the added steps.
    """
    at = state.recovered_at_step
    return bool(continuations) and at is not None and at < continuations[-1].from_step


def is_finished(
    state: TrainState, recipe: PretrainRecipe, continuations: Sequence[Continuation], stop_when_recovered: bool
) -> bool:
    """Returns whether the last step was made and evaluated, or the run ended early because it recovered."""
    has_recovered = state.recovered_at_step is not None and not recovered_before_continuation(state, continuations)
    is_at_end = state.step >= total_steps(recipe, continuations) or (stop_when_recovered and has_recovered)
    return is_at_end and state.evaluated_at_step == state.step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(Artifact):
    """The state of a run at its end, or so far, with its median speed, number of processes and peak memory."""

    FILE: ClassVar[str] = "summary.json"

    format: int = 3
    state: TrainState
    train_tokens_per_second: float | None
    num_processes: int
    peak_memory_bytes: int
