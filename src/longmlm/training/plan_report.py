"""The report of the plan command: a line per subject, each exact or an estimate."""

from longmlm.data.size import token_bytes
from longmlm.model.cost import GB
from longmlm.settings.plan import PlanConfig
from longmlm.training.plan import Planned

PREPARED_TOKENS_PER_SECOND = 400_000  # of one worker; RoBERTa's tokenizer encodes 430,000 to 750,000
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def plan_report(planned: Planned, config: PlanConfig) -> str:
    """Returns the report as text."""
    kind = "exact" if planned.rows.is_exact else "estimate"
    lines = [
        ("corpus", "exact", _corpus(planned)),
        ("rows", kind, _rows(planned)),
        ("model", "exact", _model(planned)),
        ("steps", kind, _steps(planned, config)),
        ("memory", "estimate", _memory(planned)),
        ("disk", "estimate", _disk(planned, config)),
        ("time", "estimate", _time(planned, config)),
    ]
    return "\n".join(f"{name:8}{kind:10}{text}" for name, kind, text in lines)


def _corpus(planned: Planned) -> str:
    corpus = planned.corpus
    missing = f"; not counted: {', '.join(corpus.not_counted)}" if corpus.not_counted else ""
    return f"{corpus.num_files:,} files, {corpus.num_bytes / 1e6:,.1f} MB{missing}"


def _rows(planned: Planned) -> str:
    rows = planned.rows
    counts = f"{rows.train_rows:,} rows of {planned.work.row_length} tokens, {rows.mean_fill:.1%} full"
    return f"{rows.num_tokens / 1e6:,.2f} M tokens; {counts}; {rows.held_out_rows:,} rows held out"


def _model(planned: Planned) -> str:
    positions = f"{planned.base_positions} positions"
    if planned.work.row_length > planned.base_positions:
        positions += f" extended to {planned.work.row_length}"
    return f"{planned.model_type}, {planned.num_parameters / 1e6:.1f} M parameters, {positions}"


def _steps(planned: Planned, config: PlanConfig) -> str:
    training = planned.training
    steps = (
        f"{config.pretrain.recipe.num_steps:,} of {training.rows_per_step} rows ({training.tokens_per_step:,} tokens)"
    )
    return f"{steps}: {training.num_tokens / 1e6:,.1f} M tokens, {training.epochs:.2f} epochs"


def _memory(planned: Planned) -> str:
    training, free = planned.training, f"{planned.machine.memory_bytes / GB:.1f} GB"
    need = f"{training.memory_bytes / GB:.1f} GB per process"
    if not training.rows_per_micro_batch:
        return f"not even one row fits: {need}, {free} are free; set activation_checkpointing = true or lower length"
    state = f"{planned.cost.state_bytes / GB:.1f} GB weights, gradients, moments"
    return f"{need} ({state}) with micro-batches of {training.rows_per_micro_batch} rows; {free} are free"


def _disk(planned: Planned, config: PlanConfig) -> str:
    rows = planned.rows.num_tokens * token_bytes(planned.vocabulary_size)
    weights = planned.num_parameters * WEIGHT_BYTES[config.release.recipe.weights]
    long = 4 * planned.num_parameters if config.extend else 0
    checkpoints = planned.training.checkpoints_bytes
    parts = f"rows {rows / GB:.2f}, long model {long / GB:.2f}, checkpoints {checkpoints / GB:.2f}"
    total = rows + long + checkpoints + weights
    return f"{total / GB:.2f} GB: {parts}, release {weights / GB:.2f}; {planned.free_disk_bytes / GB:.1f} GB are free"


def _time(planned: Planned, config: PlanConfig) -> str:
    num_workers, machine = config.prepare.runtime.num_workers, planned.machine
    prepare = 0.0 if planned.rows.is_exact else planned.rows.num_tokens / PREPARED_TOKENS_PER_SECOND / num_workers
    speed = f"{machine.tokens_per_second:,.0f} tokens/s on {machine.name}"
    training = f"training {_duration(3600 * planned.training.hours)} with its evaluations ({speed})"
    return f"{training}, prepare {_duration(prepare)}; {machine.speed_from}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"  # noqa: PLR2004 - an hour
