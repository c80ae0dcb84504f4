"""Settings of the pretrain stage: what is learned, how fast, and where the run is written."""

import math
from dataclasses import dataclass, field
from typing import Literal

from longmlm.settings.held_out import HeldOut
from longmlm.settings.masking import Masking

MAX_BATCH_TOKENS = 100_000_000
MAX_THREADS = 1024
Precision = Literal["auto", "no", "bf16"]
Schedule = Literal["linear", "cosine", "constant-then-decay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The weights that a run starts from: a checkpoint, or an untrained model with a tokenizer."""

    __pydantic_config__ = {"extra": "forbid"}

    checkpoint: str | None = None
    """Folder or hub name of a model with an MLM head, or a run folder, whose best checkpoint is used."""
    revision: str | None = None
    """Branch, tag or commit of a checkpoint on the hub."""
    new_head: bool = False
    """Whether to give a checkpoint without an MLM head a new, untrained one."""
    architecture: str | None = None
    """A transformers config.json, for an untrained model."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer of an untrained model."""

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.architecture is None):
            raise ValueError("name either a checkpoint, or an architecture with its tokenizer")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("an untrained model needs a tokenizer as well as an architecture")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRecipe:
    """What is learned and how it is measured. A change gives another run."""

    __pydantic_config__ = {"extra": "forbid"}

    num_steps: int
    """Optimizer updates. May be changed on resume while the learning rate is constant."""
    batch_tokens: int
    """Tokens in a global batch: all processes and micro-batches of a step together."""
    learning_rate: float
    """Learning rate after warm-up."""
    schedule: Schedule = "linear"
    """After warm-up: linear or cosine decay to zero, or constant with a linear decay at the end."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly."""
    decay_steps: int = 0
    """Steps of the decay of constant-then-decay."""
    weight_decay: float = 0.01
    """AdamW's weight decay, applied to weight matrices and embeddings but not to biases and LayerNorms."""
    adam_beta1: float = 0.9
    """AdamW's decay of the running mean of gradients."""
    adam_beta2: float = 0.98
    """AdamW's decay of the running mean of squared gradients; 0.98 is RoBERTa's."""
    adam_epsilon: float = 1e-6
    """AdamW's epsilon; 1e-6 is RoBERTa's."""
    max_gradient_norm: float = 1.0
    """Norm at which gradients are clipped."""
    dropout: float | None = None
    """Probability of every dropout; absent for that of the checkpoint."""
    precision: Precision = "auto"
    """Autocast: no (fp32), bf16, or auto for bf16 if the hardware supports it. Parameters and optimizer are fp32."""
    seed: int = 42
    """Seed of the order of rows, of the masks and of dropout."""
    masking: Masking = field(default_factory=Masking)
    """Which tokens are selected for prediction, and what replaces them."""
    held_out: HeldOut = field(default_factory=HeldOut)
    """The held-out rows that the run evaluates, and their frozen masks."""

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.batch_tokens < 1 or not 0 < self.learning_rate < math.inf:
            raise ValueError("num_steps, batch_tokens and learning_rate must be positive")
        if self.batch_tokens > MAX_BATCH_TOKENS:
            raise ValueError(f"batch_tokens must be at most {MAX_BATCH_TOKENS:,}: a global batch is masked in memory")
        if not (0 <= self.adam_beta1 < 1 and 0 <= self.adam_beta2 < 1 and 0 < self.adam_epsilon < math.inf):
            raise ValueError("adam_beta1 and adam_beta2 must be at least 0 and below 1, adam_epsilon positive")
        if not (0 <= self.weight_decay < math.inf and self.max_gradient_norm > 0):
            raise ValueError("weight_decay must not be negative, max_gradient_norm must be positive")
        if not 0 <= self.seed < 2**63:
            raise ValueError("seed must be at least 0 and below 2 ** 63")
        if min(self.warmup_steps, self.decay_steps) < 0 or self.warmup_steps + self.decay_steps > self.num_steps:
            raise ValueError("warmup_steps and decay_steps must not be negative nor exceed num_steps together")
        if self.schedule == "constant-then-decay" and not self.decay_steps:
            raise ValueError("constant-then-decay needs decay_steps")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRuntime:
    """How fast it is learned, and what is kept. May be changed on resume."""

    __pydantic_config__ = {"extra": "forbid"}

    rows_per_micro_batch: int = 8
    """Rows in one forward and backward pass of one process; accumulation follows from the global batch."""
    rows_per_evaluation_batch: int = 16
    """Rows in one forward pass of an evaluation."""
    num_processes: int | None = None
    """Expected number of processes; a launch with another number is refused. Absent for any number."""
    num_threads: int | None = None
    """CPU threads per process without a GPU; absent for an equal share of the cores."""
    hang_seconds: float = 1800.0
    """Seconds without a forward pass after which a process exits, because another one must have hung."""
    num_loader_workers: int = 0
    """Processes per training process that prepare batches ahead; 0 prepares them in the training process."""
    activation_checkpointing: bool = False
    """Whether activations are recomputed in the backward pass: a third more work, a fraction of the memory."""
    peak_flops: float | None = None
    """Peak bf16 FLOP/s of the GPU, for MFU; absent for the data sheet's figure, if the GPU is known."""
    log_every_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    evaluate_every_steps: int = 100
    """Steps between two evaluations."""
    save_every_steps: int = 100
    """Steps between two checkpoints."""
    checkpoints_kept: int = 2
    """Newest checkpoints to keep, at least two; the best one is kept as well."""
    stop_when_recovered: bool = False
    """Whether the run ends when held-out accuracy at full length reaches the base model's."""

    def __post_init__(self) -> None:
        batches = (self.rows_per_micro_batch, self.rows_per_evaluation_batch)
        if min(*batches, self.log_every_steps, self.evaluate_every_steps, self.save_every_steps) < 1:
            raise ValueError("rows per batch and the numbers of steps between events must be at least 1")
        if self.checkpoints_kept < 2:
            raise ValueError("checkpoints_kept must be at least 2: the newest may turn out damaged")
        if not 0 < self.hang_seconds <= 1e8:
            raise ValueError("hang_seconds must be positive, and at most 1e8")
        if self.peak_flops is not None and not 0 < self.peak_flops < math.inf:
            raise ValueError("peak_flops must be positive")
        if self.num_loader_workers < 0:
            raise ValueError("num_loader_workers must not be negative")
        if self.num_threads is not None and not 1 <= self.num_threads <= MAX_THREADS:
            raise ValueError(f"num_threads must be between 1 and {MAX_THREADS}")
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError("num_processes must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """A tracker that shows the run; metrics.jsonl always has every figure."""

    __pydantic_config__ = {"extra": "forbid"}

    tracker: Literal["wandb", "tensorboard"] | None = None
    """Weights & Biases, offline unless its client is logged in, or TensorBoard; absent for neither."""
    project: str = "longmlm"
    """Project at W&B."""
    entity: str | None = None
    """User or team at W&B; absent for the client's own."""
    name: str | None = None
    """Name of the run at W&B; absent for the last two parts of its folder."""
    num_examples: int = 3
    """Held-out rows per evaluation for which the model's predictions near the end of the row are shown."""

    def __post_init__(self) -> None:
        if self.num_examples < 0:
            raise ValueError("num_examples must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Trains a model on packed rows; after any interruption the same command resumes."""

    __pydantic_config__ = {"extra": "forbid"}

    run: str
    """Run folder: checkpoints, metrics.jsonl, the resolved settings."""
    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] on the hub; its commit is resolved once and kept."""
    start: Start
    """The weights to start from."""
    recipe: PretrainRecipe
    """What is learned."""
    runtime: PretrainRuntime = field(default_factory=PretrainRuntime)
    """How fast it is learned, and what is kept."""
    tracking: Tracking = field(default_factory=Tracking)
    """The tracker that shows the run."""
    dry_run: bool = False
    """Whether to check everything, make two steps, report what the run would do, and write nothing."""
