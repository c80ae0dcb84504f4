"""The report of the plan command: a line per subject, each exact or an estimate."""

from longmlm.data.disk import REMEDY, Sizes, result_bytes, shortage
from longmlm.data.files import left_out
from longmlm.errors import counted
from longmlm.folders import GB
from longmlm.planning.estimate import PlanFacts
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.results import result_of

PREPARED_TOKENS_PER_SECOND = 400_000  # of one worker; RoBERTa's tokenizer encodes 430,000 to 750,000
MAX_EPOCHS = 40  # beyond which repeated text hardly lowers the loss: Muennighoff et al. 2023, arXiv:2305.16264


def plan_report(facts: PlanFacts, config: PlanConfig) -> str:
    """Returns the report as text."""
    kind = "exact" if facts.rows.is_exact else "estimate"
    lines = [
        ("corpus", "exact", _corpus(facts, config)),
        ("rows", kind, _rows(facts)),
        ("model", "exact", _model(facts)),
        ("steps", kind, _steps(facts, config)),
        ("memory", "estimate", _memory(facts)),
        ("disk", "estimate", _disk(facts, config)),
        ("time", "estimate", _time(facts, config)),
    ]
    return "\n".join(f"{name:8}{kind:10}{text}" for name, kind, text in lines)


def _corpus(facts: PlanFacts, config: PlanConfig) -> str:
    corpus, own = facts.corpus, left_out([name for source in config.prepare.recipe.sources for name in source.files])
    missing = f"; not counted: {', '.join(corpus.not_counted)}" if corpus.not_counted else ""
    return f"{counted(corpus.num_files, 'file')}, {corpus.num_bytes / 1e6:,.1f} MB{missing}{own and '; '}{own}"


def _rows(facts: PlanFacts) -> str:
    rows = facts.rows
    counts = f"{counted(rows.train_rows, 'row')} of {facts.work.row_length} tokens, {rows.mean_fill:.1%} full"
    return f"{rows.num_tokens / 1e6:,.2f} M tokens; {counts}; {rows.held_out_rows:,} held out"


def _model(facts: PlanFacts) -> str:
    positions = f"{facts.base_positions} positions"
    if facts.work.row_length > facts.base_positions:
        positions += f" extended to {facts.work.row_length}"
    return f"{facts.model_type}, {facts.num_parameters / 1e6:.1f} M parameters, {positions}"


def _steps(facts: PlanFacts, config: PlanConfig) -> str:
    training = facts.training
    rows = counted(training.rows_per_step, "row")
    steps = f"{config.pretrain.recipe.num_steps:,} of {rows} ({training.tokens_per_step:,} tokens)"
    advice = "; so many repetitions gain little: add text or lower num_steps" if training.epochs > MAX_EPOCHS else ""
    return f"{steps}: {training.num_tokens / 1e6:,.1f} M tokens, {training.epochs:.2f} epochs{advice}"


def _memory(facts: PlanFacts) -> str:
    training, free = facts.training, f"{facts.machine.memory_bytes / GB:.1f} GB"
    need = f"{training.memory_bytes / GB:.1f} GB per process"
    if not training.rows_per_micro_batch:
        return f"not even one row fits: {need}, {free} are free; set activation_checkpointing = true or lower length"
    state = f"{facts.cost.state_bytes / GB:.1f} GB weights, gradients, moments"
    return f"{need} ({state}) with micro-batches of {counted(training.rows_per_micro_batch, 'row')}; {free} are free"


def _disk(facts: PlanFacts, config: PlanConfig) -> str:
    sizes = Sizes(facts.num_parameters, facts.vocabulary_size, facts.rows.num_tokens)
    found = result_bytes(config, sizes)
    parts = f"rows {found['prepare'] / GB:.2f}, long model {found['extend'] / GB:.2f}"
    parts += f", checkpoints {found['pretrain'] / GB:.2f}, release {found['release'] / GB:.2f}"
    text = f"{sum(found.values()) / GB:.2f} GB: {parts}; {facts.free_disk_bytes / GB:.1f} GB are free"
    missing = [name for name, stage in config.stages.items() if not result_of(stage).exists()]
    problem = shortage(config, [*missing, "pretrain"], sizes)
    return f"{text}; {problem}: {REMEDY}" if problem else text


def _time(facts: PlanFacts, config: PlanConfig) -> str:
    num_workers, machine = config.prepare.runtime.num_workers, facts.machine
    prepare = 0.0 if facts.rows.is_exact else facts.rows.num_tokens / PREPARED_TOKENS_PER_SECOND / num_workers
    speed = f"{machine.tokens_per_second:,.0f} tokens/s on {machine.name}"
    training = f"training {_duration(3600 * facts.training.hours)} with its evaluations ({speed})"
    return f"{training}, prepare {_duration(prepare)}; {machine.speed_source}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"  # noqa: PLR2004 - an hour
