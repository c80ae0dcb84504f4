"""Estimates the steps, epochs, memory and time of a pipeline before anything runs; assumed speeds are named."""

import math
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from longmlm.batches.sampling import largest_share, mixture_of, rows_per_step
from longmlm.data.encoding import library_of
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import counted
from longmlm.model.cost import Cost, Work, micro_batch_rows
from longmlm.planning.size import CorpusSize, RowsSize
from longmlm.runtime.memory import KEPT_BYTES
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.pretrain import PretrainRecipe, PretrainRuntime
from longmlm.settings.results import result_of

# Assumed speed of one CPU, per second. Measured on an AMD EPYC: 163,000 to 400,000 tokens of English with tokenizers,
# 736,000 with gigatoken; 65 MB of text in the search for exact copies, 18 MB in that for near ones.
PREPARED_TOKENS, PREPARED_TOKENS_FAST = 250_000, 700_000
SURVEYED_BYTES = {"exact": 65_000_000, "near": 18_000_000}
LIBRARY_BYTES = 680_000_000  # Python with all libraries of a run, its open files and its page, without the model


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to train on: memory of each process, total speed of all processes, and the source of that speed."""

    name: str
    memory_bytes: int
    num_processes: int
    tokens_per_second: float
    speed_source: str


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a training run takes; `rows_per_micro_batch` is 0 if not even one row fits.

    `seen` has, by the name of each source, how often it is seen and its share of the tokens.
    """

    rows_per_step: int
    tokens_per_step: int
    num_tokens: int
    epochs: float
    rows_per_micro_batch: int
    memory_bytes: int
    hours: float
    seen: dict[str, tuple[float, float]] = field(default_factory=dict)


def training_plan(
    rows: RowsSize, cost: Cost, work: Work, machine: Machine, recipe: PretrainRecipe, runtime: PretrainRuntime
) -> TrainingPlan:
    """Returns what training takes on a machine; raises TrainingError if a step has fewer rows than processes.

    Speeds count padding as tokens; `num_tokens` does not.
    """
    row_length, num_processes = work.row_length, machine.num_processes
    mixture = mixture_of(recipe.weights, rows.sources) if rows.sources or rows.is_exact else None
    mean_fill = rows.mean_fill * (mixture.fill if mixture else 1)
    num_rows = rows_per_step(recipe.batch_tokens, row_length, mean_fill, num_processes)
    share = largest_share(num_rows, num_processes)
    fitting = cost.fitting_rows(machine.memory_bytes, cost.state_bytes)
    chosen = micro_batch_rows(fitting, share, row_length, work.has_gpu)
    if runtime.rows_per_micro_batch is not None:
        chosen = min(runtime.rows_per_micro_batch, share)
    evaluated = min(rows.held_out_rows, recipe.held_out.max_rows or rows.held_out_rows) * (2 if recipe.pairs else 1)
    num_steps, epochs = recipe.num_steps, recipe.num_steps * num_rows / rows.train_rows
    times = mixture.times_seen(num_steps * num_rows) if mixture else dict.fromkeys(rows.sources, epochs)
    tokens = {name: times[name] * num_tokens for name, (_, num_tokens) in rows.sources.items()}
    evaluations = evaluations_as_steps(num_steps, runtime, evaluated / num_rows)
    return TrainingPlan(
        rows_per_step=num_rows,
        tokens_per_step=round(num_rows * row_length * mean_fill),
        num_tokens=round(num_steps * num_rows * row_length * mean_fill),
        epochs=epochs,
        rows_per_micro_batch=chosen,
        memory_bytes=memory_bytes(cost, work, max(1, chosen)),
        hours=(num_steps + evaluations) * num_rows * row_length / machine.tokens_per_second / 3600,
        seen={name: (times[name], own / sum(tokens.values())) for name, own in tokens.items()},
    )


def memory_bytes(cost: Cost, work: Work, num_rows: int) -> int:
    """Returns the peak memory of a process; on a CPU, including libraries and the copy for saving a checkpoint.

    The copy is written while training goes on. Blocks that glibc keeps are small ones: those of small models.
    """
    rows = cost.batch_bytes(num_rows)
    if work.has_gpu:
        return cost.state_bytes + rows
    return LIBRARY_BYTES + cost.state_bytes + rows + min(rows, KEPT_BYTES) + cost.checkpoint_bytes


def evaluations_as_steps(num_steps: int, runtime: PretrainRuntime, size: float) -> float:
    """Returns how many steps take as long as the evaluations in `num_steps`, each of `size` global batches.

    An evaluation only runs forward, a third of the work per token; a run makes two more than its interval gives. With
    pairs, it reads the held-out rows twice: count them so.
    """
    return (math.ceil(num_steps / runtime.evaluate_every_steps) + 2) * size / 3


def distillation_time(config: PlanConfig, model: PreTrainedModel, machine: Machine, has_gpu: bool) -> str:
    """Returns how long the distillation takes, in one process; an empty string if there is none or it is done."""
    extend = config.extend
    if extend is None or extend.recipe.initialisation != "distilled" or result_of(extend).exists():
        return ""
    recipe = extend.recipe.distillation
    speed = machine.tokens_per_second / (machine.num_processes if has_gpu else 1)  # a CPU is shared by its processes
    seconds = recipe.num_tokens * recipe.flop_ratio(model.config.num_hidden_layers) / speed
    return f"distillation {duration(seconds)} in one process"


def prepare_time(config: PlanConfig, corpus: CorpusSize, rows: RowsSize, vocabulary: Vocabulary | None) -> str:
    """Returns how long prepare takes, and the assumptions."""
    recipe, runtime = config.prepare.recipe, config.prepare.runtime
    if rows.is_exact:
        return "prepare is done"
    is_fast = vocabulary is not None and runtime.encoder == "auto" and recipe.words is None
    library = library_of(vocabulary.tokenizer) if vocabulary and is_fast else "tokenizers"
    speed = PREPARED_TOKENS if library == "tokenizers" else PREPARED_TOKENS_FAST
    seconds, basis = rows.num_tokens / speed, f"an assumed {speed:,} tokens/s each with {library}"
    if recipe.sought != "keep":
        seconds += corpus.text_bytes / SURVEYED_BYTES[recipe.sought]
        basis += f", after a search for {recipe.sought} copies"
    if runtime.executor == "ray" and runtime.num_workers is None:
        return f"prepare {duration(seconds)} divided by the CPUs of the Ray cluster ({basis})"
    num_workers = min(runtime.num_workers or 1, -(-corpus.text_bytes // recipe.slice_bytes))
    return f"prepare {duration(seconds / num_workers)} ({counted(num_workers, 'worker')}, {basis})"


def duration(seconds: float) -> str:
    """Returns seconds as hours or minutes."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"  # noqa: PLR2004 - an hour
