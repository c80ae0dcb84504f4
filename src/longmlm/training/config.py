"""What a run learns and how fast: the settings of the pretrain stage."""

import math
from dataclasses import dataclass, field
from typing import Literal

from longmlm.data.config import Masking
from longmlm.evaluation.config import HeldOut

Precision = Literal["auto", "no", "bf16"]
Schedule = Literal["linear", "cosine", "constant-then-decay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The weights that a run begins with: a checkpoint, or an untrained model with a tokenizer."""

    __pydantic_config__ = {"extra": "forbid"}

    checkpoint: str | None = None
    """Folder or hub name of a model with an MLM head, or a run folder: its best weights, and nothing else of it."""
    revision: str | None = None
    """Branch, tag or commit of a checkpoint on the hub."""
    new_head: bool = False
    """Whether a checkpoint without an MLM head gets a new, untrained one."""
    architecture: str | None = None
    """A transformers config.json, for an untrained model."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer of an untrained model."""

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.architecture is None):
            raise ValueError("name either a checkpoint, or an architecture with its tokenizer")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("an untrained model needs a tokenizer beside its architecture")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeConfig:
    """What is learnt. A change of it makes another run."""

    __pydantic_config__ = {"extra": "forbid"}

    num_steps: int
    """Optimizer updates. May be changed on resume while the learning rate is constant."""
    batch_tokens: int
    """Tokens in a global batch, over all processes and micro-batches."""
    learning_rate: float
    """The rate after warm-up."""
    schedule: Schedule = "linear"
    """From warm-up on: down to zero linearly, as a cosine, or constant with a linear decay at the end."""
    warmup_steps: int = 0
    """Steps in which the rate rises linearly."""
    decay_steps: int = 0
    """Steps of the decay of constant-then-decay."""
    weight_decay: float = 0.01
    """AdamW's, on weight matrices and embeddings; never on biases and LayerNorms."""
    adam_beta1: float = 0.9
    """Decay of the gradient's mean."""
    adam_beta2: float = 0.98
    """Decay of the gradient's square; 0.98 is RoBERTa's."""
    adam_epsilon: float = 1e-6
    """Added to the root of the square; 1e-6 is RoBERTa's."""
    max_gradient_norm: float = 1.0
    """Gradients of a larger norm are scaled down to it."""
    dropout: float | None = None
    """Probability of every dropout; absent for what the checkpoint says."""
    precision: Precision = "auto"
    """Autocast: no (fp32), bf16, or auto: bf16 where a new run finds it. Parameters and optimizer are fp32."""
    seed: int = 42
    """Seed of the order, the masks and dropout."""
    masking: Masking = field(default_factory=Masking)
    """Which tokens are to be told."""

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.batch_tokens < 1 or not 0 < self.learning_rate < math.inf:
            raise ValueError("num_steps, batch_tokens and learning_rate must be positive")
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
class RuntimeConfig:
    """How fast it is learnt, and what is kept. May change from start to start."""

    __pydantic_config__ = {"extra": "forbid"}

    rows_per_micro_batch: int = 8
    """Rows of one forward and backward pass in one process; accumulation follows from the global batch."""
    num_processes: int | None = None
    """Processes that the launch must have; absent for any number."""
    num_threads: int | None = None
    """CPU threads of each process where there is no GPU; absent for a fair share of the cores."""
    hang_seconds: float = 1800.0
    """Seconds without a forward pass after which a process takes its fellows for hung, and ends."""
    num_loader_workers: int = 0
    """Processes that make batches ahead, for each training process; 0 makes them in it."""
    activation_checkpointing: bool = False
    """Whether activations are computed again in the backward pass: a third more work, a fraction of the memory."""
    peak_flops: float | None = None
    """FLOP/s in bf16 that a GPU can reach, for MFU; absent for what its data sheet says, if it is a known one."""
    log_every_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    evaluate_every_steps: int = 100
    """Steps between two evaluations."""
    save_every_steps: int = 100
    """Steps between two checkpoints."""
    checkpoints_kept: int = 2
    """Newest checkpoints that stay, at least two; the best stays besides."""
    stop_when_recovered: bool = False
    """Whether the run ends when held-out accuracy at full length has reached the base model's."""

    def __post_init__(self) -> None:
        if min(self.rows_per_micro_batch, self.log_every_steps, self.evaluate_every_steps, self.save_every_steps) < 1:
            raise ValueError("rows_per_micro_batch and the numbers of steps between events must be at least 1")
        if self.checkpoints_kept < 2:
            raise ValueError("checkpoints_kept must be at least 2: the newest may turn out damaged")
        if not 0 < self.hang_seconds <= 1e8:
            raise ValueError("hang_seconds must be positive, and at most 1e8")
        if self.peak_flops is not None and not 0 < self.peak_flops < math.inf:
            raise ValueError("peak_flops must be positive")
        if self.num_loader_workers < 0:
            raise ValueError("num_loader_workers must not be negative")
        if (self.num_threads or 1) < 1 or (self.num_processes or 1) < 1:
            raise ValueError("num_threads and num_processes must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Where a run is shown besides metrics.jsonl, which has every figure."""

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
    """Held-out rows of which each evaluation shows what the model fills in near the end."""

    def __post_init__(self) -> None:
        if self.num_examples < 0:
            raise ValueError("num_examples must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Rows and a checkpoint to checkpoints of a trained model; the same command goes on after any end."""

    __pydantic_config__ = {"extra": "forbid"}

    run: str
    """Run folder: checkpoints, metrics.jsonl, the resolved settings."""
    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] of the hub; the commit that it means at first is kept."""
    start: Start
    """The weights to begin with."""
    recipe: RecipeConfig
    """What is learnt."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """How fast, and what is kept."""
    held_out: HeldOut = field(default_factory=HeldOut)
    """The evaluation in the run."""
    tracking: Tracking = field(default_factory=Tracking)
    """Where the run is shown."""
    dry_run: bool = False
    """Whether all is checked, a step is made and what the run would do is told, and nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig:
    """A run's checkpoints: listed, verified, one of them exported."""

    __pydantic_config__ = {"extra": "forbid"}

    run: str
    """Run folder."""
    action: Literal["list", "verify", "export"] = "list"
    """list; verify: read every file and compare it with its manifest; export: write one as a stock model."""
    step: int | None = None
    """Step of the checkpoint to export; absent for the best."""
    output: str | None = None
    """Folder to export to."""

    def __post_init__(self) -> None:
        if (self.action == "export") != (self.output is not None):
            raise ValueError("export needs output, the folder to write; list and verify need none")
