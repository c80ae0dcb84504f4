"""A run in two halves: what is learned, and what executes it."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.artifacts.rows import RowsPlan
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.batches.steps import StepBatches
from longmlm.data.rows import Rows
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.model.carried import Carried
from longmlm.model.cost import Cost
from longmlm.settings.masking import pair_kind
from longmlm.settings.pretrain import ComputePrecision, PretrainRecipe, PretrainRuntime
from longmlm.training.backend import Backend


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is saved next to the weights; `trained_on` is the entry for longmlm.json, without the progress made.

    A new run reads the rows from `cursor` on: those before it were read by the run that it starts from. `rows_plan` and
    `architecture_sha256` are what CheckpointState records of its inputs.
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


@dataclass(frozen=True, slots=True)
class Run:
    """What executes a task, and where its results go.

    `peak_tokens_per_second` is the speed of all devices at their peak FLOP/s, to which MFU is the ratio; None where it
    is not known.
    """

    folder: Path
    accelerator: Accelerator
    backend: Backend
    runtime: PretrainRuntime
    num_parameters: int
    cost: Cost
    peak_tokens_per_second: float | None
