"""Settings of the pretrain stage: initial weights, recipe, how the run is executed."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from longmlm.settings.masking import HeldOut, Masking, Pairs, Seed
from longmlm.settings.tables import Unused

ComputePrecision = Literal["no", "fp16", "bf16"]
Precision = Literal["auto", ComputePrecision]
Positive = Annotated[float, Interval(gt=0, lt=math.inf)]
Probability = Annotated[float, Interval(ge=0, lt=1)]
Schedule = Literal["linear", "cosine", "constant-then-decay"]
Weight = float | dict[str, float]  # of a source: a number, or {SHARE: a number}
SHARE = "share"
ROUNDING = 1e-6  # by which the sum of shares may differ from 1


def number_format(precision: ComputePrecision) -> str:
    """Returns the number format of a precision: fp32 for no."""
    return "fp32" if precision == "no" else precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The initial weights: a checkpoint, or an untrained model with a tokenizer."""

    checkpoint: str | None = None
    """Folder or hub name (OWNER/NAME, ms:OWNER/NAME) of a model with an MLM head, or a run folder, whose best
    checkpoint is used."""
    revision: str | None = None
    """Branch, tag or commit of a checkpoint on the hub."""
    new_head: bool = False
    """Add an untrained MLM head or, with [recipe.pairs], pair head and pooler, to a checkpoint that has none."""
    architecture: str | None = None
    """Path of a transformers config.json, for an untrained model."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer, for an untrained model."""

    @property
    def name(self) -> str:
        """The model's name in messages: that of the checkpoint or of the architecture."""
        return self.checkpoint or str(self.architecture)

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.architecture is None):
            raise ValueError("name either a checkpoint, or an architecture with its tokenizer")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("an untrained model needs a tokenizer as well as an architecture")
        if self.checkpoint is not None and self.tokenizer is not None:
            raise ValueError("tokenizer is for an untrained model: a checkpoint has its own; remove one of them")
        if self.architecture is not None and (self.revision is not None or self.new_head):
            raise ValueError("revision and new_head are for a checkpoint: an untrained model has neither; remove them")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRecipe:
    """What is learned and how it is evaluated; changing it makes a different run."""

    num_steps: Annotated[int, Ge(1)]
    """Number of optimizer updates; may be changed on resume while the learning rate is constant."""
    batch_tokens: Annotated[int, Interval(ge=1, le=100_000_000)]  # it is masked in memory
    """Tokens in a global batch: over all ranks and micro-batches of a step."""
    learning_rate: Positive
    """Learning rate after warm-up."""
    schedule: Schedule = "linear"
    """After warm-up: linear or cosine decay to zero, or constant followed by a linear decay to zero."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps of linear warm-up. In a pipeline, num_steps / 20 by default."""
    decay_steps: Annotated[int, Ge(0)] = 0
    """Steps of the decay at the end of constant-then-decay."""
    weight_decay: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.01
    """AdamW's weight decay, applied to weight matrices and embeddings but not to biases and LayerNorms."""
    adam_beta1: Probability = 0.9
    """AdamW's decay rate of the running mean of gradients."""
    adam_beta2: Probability = 0.98
    """AdamW's decay rate of the running mean of squared gradients; 0.98 is RoBERTa's."""
    adam_epsilon: Positive = 1e-6
    """AdamW's epsilon; 1e-6 is RoBERTa's."""
    max_gradient_norm: Annotated[float, Gt(0)] = 1.0
    """Norm to which gradients are clipped."""
    dropout: Probability | None = None
    """Probability of every dropout layer; by default as in the checkpoint."""
    precision: Precision = "auto"
    """Autocast precision: no (fp32), bf16, auto (bf16 if supported, else no), or fp16 with loss scaling, for GPUs
    without bf16. Parameters and optimizer stay fp32."""
    seed: Seed = 42
    """Seed of the row order, the masks and dropout."""
    weights: dict[str, Weight] = field(default_factory=dict)
    """For each source, by name: how often its rows are seen, relative to those of the others (1 if not named), or
    `{ share = 0.3 }`, its share of the training tokens. By default, every row is seen equally often."""
    masking: Masking = field(default_factory=Masking)
    pairs: Pairs | None = None
    held_out: HeldOut = field(default_factory=HeldOut)
    isolate_documents: bool = False
    """Let no token attend to another document of its row; positions do not restart at documents."""

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if self.warmup_steps + self.decay_steps > self.num_steps:
            raise ValueError("warmup_steps and decay_steps must not exceed num_steps together")
        if self.schedule == "constant-then-decay" and not self.decay_steps:
            raise ValueError("constant-then-decay needs decay_steps")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if self.schedule != "constant-then-decay":
            reason = f"with schedule = {self.schedule}: remove it, or set schedule = constant-then-decay"
            yield ("decay_steps",), reason

    def for_added_steps(self, num_steps: int) -> "PretrainRecipe":
        """Returns the recipe of `num_steps` steps that are added to a finished run: the same schedule without warm-up.

        Linear and cosine decay begin at once; constant-then-decay keeps the length of its decay.
        """
        decay_steps = min(num_steps, self.decay_steps)
        return replace(self, num_steps=num_steps, warmup_steps=0, decay_steps=decay_steps)

    def is_constant(self, step: int) -> bool:
        """Returns whether no update before `step` depended on the number of steps, so that it may be changed."""
        return self.schedule == "constant-then-decay" and step <= self.num_steps - self.decay_steps


def has_shares(weights: Mapping[str, Weight]) -> bool:
    """Returns whether valid weights are shares of the training tokens."""
    return any(isinstance(weight, dict) for weight in weights.values())


def number_of(weight: Weight) -> float:
    """Returns the number in a valid weight."""
    return weight[SHARE] if isinstance(weight, dict) else weight


def check_weights(weights: Mapping[str, Weight]) -> None:
    """Raises ValueError for weights that are invalid whatever the corpus."""
    are_shares = has_shares(weights)
    for name, weight in weights.items():
        if isinstance(weight, dict) != are_shares or (isinstance(weight, dict) and weight.keys() != {SHARE}):
            raise ValueError(f"weights.{name} must be a number, or {{ share = NUMBER }} as for every other source")
        if not 0 < number_of(weight) < math.inf:
            raise ValueError(f"weights.{name} must be positive: to leave a source out of training, hold it out instead")
    if are_shares and abs((total := sum(map(number_of, weights.values()))) - 1) > ROUNDING:
        raise ValueError(f"the shares in weights add up to {total:g}: they must add up to 1")


def weights_problem(weights: Mapping[str, Weight], names: Collection[str]) -> str:
    """Returns what is wrong with the weights, given the names of the sources to train on; empty if nothing is."""
    listed = ", ".join(names)
    if len(names) == 1:
        return f"weights need several sources, but {listed} is the only one to train on: remove weights"
    if unknown := [name for name in weights if name not in names]:
        return f"weights.{unknown[0]} names no source to train on: name one of {listed}"
    if has_shares(weights) and (missing := [name for name in names if name not in weights]):
        return f"weights has no share for {missing[0]}: give one to each of {listed}; together they must be 1"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRuntime:
    """Speed, memory, logging and checkpoints; may be changed on resume."""

    rows_per_micro_batch: Annotated[int, Ge(1)] | None = None
    """Rows per forward and backward pass of one rank; by default as many as fit into free memory (on a CPU, at most
    2,048 tokens), halved when memory runs out. A resumed run keeps the number. It changes losses by rounding only."""
    rows_per_evaluation_batch: Annotated[int, Ge(1)] | None = None
    """Rows per forward pass of an evaluation; by default as many as fit into the free memory, at most 16."""
    num_processes: Annotated[int, Ge(1)] | None = None
    """Expected number of ranks; a launch with a different number is refused. By default any number is accepted."""
    num_threads: Annotated[int, Interval(ge=1, le=1024)] | None = None
    """CPU threads per rank; by default OMP_NUM_THREADS if it is exported or, without a GPU, an equal share of the
    cores."""
    hang_seconds: Annotated[float, Interval(gt=0, le=1e8)] = 1800.0
    """Seconds without progress after which a rank exits, because another rank must have hung."""
    num_loader_workers: Annotated[int, Ge(0)] | None = None
    """Processes per rank that prepare batches in advance; by default 2 with a GPU, and 0 without one, which prepares
    them in the training process."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: a third more computation, a fraction of the memory."""
    peak_flops: Positive | None = None
    """Peak bf16 or fp16 FLOP/s of the GPU, for MFU; by default the data sheet's figure, if the GPU is known."""
    log_every_steps: Annotated[int, Ge(1)] = 10
    """Steps between lines of metrics.jsonl."""
    evaluate_every_steps: Annotated[int, Ge(1)] = 100
    """Steps between evaluations. In a pipeline, num_steps / 12 by default."""
    save_every_steps: Annotated[int, Ge(1)] = 100
    """Steps between checkpoints. In a pipeline, num_steps / 12 by default."""
    checkpoints_kept: Annotated[int, Ge(2)] = 2  # the newest may turn out to be damaged
    """Newest checkpoints to keep, at least 2; the best one saved at an evaluated step is also kept."""
    stop_when_recovered: bool = False
    """End the run once it has recovered, in two evaluations in a row (documentation: The method)."""

    def num_checkpoints(self, num_steps: int) -> int:
        """Returns how many checkpoints are on disk at most: those kept, the best, and the one being written."""
        return min(self.checkpoints_kept + 2, math.ceil(num_steps / self.save_every_steps) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """A tracker to show runs in; metrics.jsonl always has every number."""

    tracker: Literal["wandb", "tensorboard"] | None = None
    """Weights & Biases (offline unless its client is logged in), TensorBoard, or by default neither."""
    project: str = "longmlm"
    """W&B project."""
    entity: str | None = None
    """W&B user or team; by default the logged-in user's."""

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        of_wandb = ("project", "entity", "name")
        if self.tracker is None:
            yield of_wandb, "without tracker: remove it, or set tracker"
        elif self.tracker == "tensorboard":
            yield of_wandb, "with tracker = tensorboard, only with wandb: remove it, or set tracker = wandb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking(Tracker):
    """A tracker to show the run in; metrics.jsonl always has every number."""

    name: str | None = None
    """Name of the run in W&B; by default the last two parts of the path of the run folder."""
    num_examples: Annotated[int, Ge(0)] = 3
    """Held-out rows per evaluation whose predictions near the end of the row are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Trains a model on packed rows; the same command resumes an interrupted run."""

    run: str
    """Run folder, for checkpoints, metrics.jsonl and the resolved settings."""
    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION], resolved to a commit when the run starts."""
    start: Start
    recipe: PretrainRecipe
    runtime: PretrainRuntime = field(default_factory=PretrainRuntime)
    tracking: Tracking = field(default_factory=Tracking)
    dry_run: bool = False
    """Check everything, make two steps, report what the run would do, and write nothing."""
    more_steps: Annotated[int, Ge(1)] | None = None
    """Steps to add to a finished run, with new rows and masks; refused in a file, which would add them each time."""

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if self.recipe.precision == "no":
            yield ("runtime.peak_flops",), "with recipe.precision = no, since it is of bf16 and fp16: remove it"
