"""A run in two halves: what is learned, and what executes it."""

import platform
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import when_recovered
from longmlm.artifacts.metrics import Metrics, MetricsFile, TrainingMetrics
from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.artifacts.rows import RowsPlan
from longmlm.artifacts.run import CheckpointState, Continuation, RunSummary, TrainState, total_steps
from longmlm.batches.steps import StepBatches
from longmlm.data.rows import Rows
from longmlm.errors import ArtifactError, counted
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.model.carried import Carried
from longmlm.model.cost import Cost
from longmlm.runtime.launch import peak_memory_bytes
from longmlm.settings.masking import pair_kind
from longmlm.settings.pretrain import ComputePrecision, PretrainRecipe, PretrainRuntime, number_format
from longmlm.training.backend import Backend


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is saved next to the weights; `trained_on` is the entry for longmlm.json, without the progress made.

    The run reads the rows from `cursor` on: those before it were read by the run that it started from. `rows_plan`,
    `architecture_sha256` and `continuations` are those in CheckpointState.
    """

    tokenizer: PreTrainedTokenizerBase
    settings: str
    recipe: PretrainRecipe
    provenance: Provenance
    trained_on: TrainingRecord
    carried: Carried = field(default_factory=Carried)
    cursor: int = 0
    rows_plan: RowsPlan | None = None
    architecture_sha256: str | None = None
    continuations: tuple[Continuation, ...] = ()

    def at(self, state: TrainState) -> CheckpointState:
        """Returns the content of state.json for this progress."""
        training = self.trained_on
        return CheckpointState(
            state=state,
            recipe=self.recipe,
            rows_sha256=str(training.rows_sha256),
            rows=training.rows,
            precision=training.precision,
            num_threads=None if torch.cuda.is_available() else torch.get_num_threads(),
            rows_plan=self.rows_plan,
            architecture_sha256=self.architecture_sha256,
            first_cursor=self.cursor,
            continuations=self.continuations,
        )


def training_record(recipe: PretrainRecipe, rows: Rows, rows_name: str, precision: ComputePrecision) -> TrainingRecord:
    """Returns what longmlm.json records of a training run, before its first step."""
    sources = rows.manifest.plan.sources
    return TrainingRecord(
        row_length=rows.row_length,
        steps=0,
        tokens=0,
        precision=precision,
        held_out=recipe.held_out,
        rows=rows_name if rows_name.startswith("hf:") else None,
        rows_sha256=rows.sha256,
        files_sha256=tuple(file.sha256 for source in sources for file in source.files),
        dataset_commits=tuple(source.commit for source in sources if source.commit),
        isolate_documents=recipe.isolate_documents,
        pairs=pair_kind(recipe.pairs),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned and how it is measured, whatever machines execute it."""

    batches: StepBatches
    evaluation: RunEvaluation
    record: RunRecord

    @property
    def recipe(self) -> PretrainRecipe:
        """The recipe, which a checkpoint records as well."""
        return self.record.recipe

    @property
    def num_steps(self) -> int:
        """The number of steps of the whole run, including added ones."""
        return total_steps(self.record.recipe, self.record.continuations)


def ignore(_line: Metrics | None) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """What executes a task, and where its results go.

    `peak_tokens_per_second` is the speed of all devices at their peak FLOP/s, to which MFU is the ratio; None where it
    is not known. The main process calls `show` with each line of metrics, and with None
    before the first one.
    """

    folder: Path
    accelerator: Accelerator
    backend: Backend
    runtime: PretrainRuntime
    num_parameters: int
    cost: Cost
    peak_tokens_per_second: float | None
    show: Callable[[Metrics | None], None] = ignore

    def record(self, line: Metrics) -> None:
        """Appends a line to metrics.jsonl and shows it; only the main process may call it."""
        MetricsFile(self.folder).append(line)
        self.show(line)


def description(task: Task, run: Run) -> dict[str, str]:
    """Returns facts about a run by name: environment, processes, model, rows, and the rows of a step."""
    model, batches = run.backend.objective.model, task.batches
    cpu = f"CPU, {counted(torch.get_num_threads(), 'thread')} each"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    precision = number_format(task.record.trained_on.precision or "no")
    python, libraries = platform.python_version(), f"torch {torch.__version__}, transformers {transformers.__version__}"
    return {
        "environment": f"Python {python}, {libraries}",
        "processes": f"{run.accelerator.num_processes} on {device}; computing in {precision}",
        "model": f"{model.config.model_type}, {run.num_parameters / 1e6:.1f} M parameters",
        "rows": f"{batches.description}; held out: {task.evaluation.frozen.description}",
        "step": f"{counted(batches.rows_per_step, 'row')}, micro-batches of {batches.rows_per_micro_batch} per process",
    }


def write_summary(run: Run, state: TrainState) -> str:
    """Writes summary.json into the run folder, and returns the accuracy reached in one line.

    A summary of this very state keeps its content, such as the peak memory of the process that made the steps.
    """
    path, is_written = run.folder / RunSummary.FILE, False
    with suppress(ArtifactError):
        is_written = artifact.read(RunSummary, path).state == state
    if not is_written:
        artifact.write(path, _summary(run, state))
    reached = accuracy_reached(state)
    return f"{reached}; pair accuracy {state.pairs}" if state.pairs else reached


def accuracy_reached(state: TrainState) -> str:
    """Returns in one line the latest accuracy, its difference from the base model's, and whether it has recovered."""
    if state.accuracy is None:
        return "held-out accuracy has not been measured yet"
    reached = f"held-out accuracy {state.accuracy:.2f} % at step {state.evaluated_at_step}"
    if state.recovery is None or state.base_chunks is None:
        return reached
    compared = state.recovery.compared_with(f"the base model's {state.base_chunks.whole.accuracy:.2f} % in chunks")
    return f"{reached}, {compared}: {when_recovered(state.recovery, state.recovered_at_step)}"


def _summary(run: Run, state: TrainState) -> RunSummary:
    lines = MetricsFile(run.folder).lines()
    speeds = [line.tokens_per_second for line in lines if isinstance(line, TrainingMetrics)]
    return RunSummary(
        state=state,
        train_tokens_per_second=statistics.median(speeds) if speeds else None,
        num_processes=run.accelerator.num_processes,
        peak_memory_bytes=peak_memory_bytes(),
    )
