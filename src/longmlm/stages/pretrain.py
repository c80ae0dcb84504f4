"""The pretrain stage: continues MLM pretraining of a checkpoint on packed rows; the same command resumes."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from accelerate import Accelerator
from transformers import PreTrainedModel

from longmlm.artifacts.provenance import Extension, Provenance, TrainingRecord
from longmlm.artifacts.rows import SPLITS
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.batches.steps import Recipe, StepBatches, check_rows_fit_model, rows_per_step
from longmlm.config import to_toml
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import Vocabulary, vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.folders import MANIFEST
from longmlm.hubs.models import snapshot_of
from longmlm.model.architecture import architecture_of
from longmlm.model.cost import Work, cost_of, peak_flops
from longmlm.model.generated import rebuild_positions
from longmlm.model.loading import LoadedModel, load_model, new_model
from longmlm.model.mlm import MlmObjective, checkpoint_activations, set_dropout
from longmlm.processes import exclusive_lock
from longmlm.runtime.collectives import broadcast_from_main, check_same_on_all_ranks, local_main_first
from longmlm.runtime.launch import launch, seed_process, shut_down
from longmlm.runtime.signals import Stop, stop_on_signal
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import RunRecord
from longmlm.training.deepspeed_backend import DeepSpeedBackend, plugin_of_launch
from longmlm.training.dry_run import dry_run
from longmlm.training.loop import is_recovered, start, train, write_summary
from longmlm.training.resume import run_precision
from longmlm.training.run import Run, Task
from longmlm.training.run_folder import (
    VerifiedCheckpoint,
    check_still_newest,
    model_folder,
    newest_verified,
    read_state,
)
from longmlm.training.tracking import check_installed, tracked

NOTED_DEVIATION = 0.1  # of the tokens in a global batch from batch_tokens


def pretrain(config: PretrainConfig) -> None:
    """Trains until the last step or a stop signal, from the newest intact checkpoint on if there is one."""
    check_installed(config.tracking.tracker)
    runtime = config.runtime
    deepspeed = plugin_of_launch(config.recipe.max_gradient_norm)
    accelerator = launch(runtime.num_processes, runtime.num_threads, runtime.hang_seconds, deepspeed)
    task, run, resumed_from = open_run(config, accelerator)
    if config.dry_run:
        accelerator.print(dry_run(task, run, resumed_from))
    else:
        execute(config, task, run, resumed_from)
    del task, run
    shut_down(accelerator)


def execute(config: PretrainConfig, task: Task, run: Run, resumed_from: Path | None) -> None:
    """Trains, shown by the tracker, while no other process writes to the run folder."""
    is_main = run.accelerator.is_main_process
    with (
        exclusive_lock(run.folder) if is_main else nullcontext(),
        watchdog(config.runtime.hang_seconds, run.accelerator.process_index),
    ):
        if is_main:
            check_still_newest(run.folder, resumed_from)
        state = start(task, run, resumed_from)
        tracker = config.tracking.tracker if is_main else None
        with stop_on_signal() as stop, tracked(run.folder, tracker, -1 if resumed_from is None else state.step):
            state = train(task, run, state, stop)
    if is_main:
        print(write_summary(run, state))
        if stop or (state.step < task.recipe.num_steps and not is_recovered(run, state)):
            print(stopped_line(stop, state))


def stopped_line(stop: Stop, state: TrainState) -> str:
    """Returns how a run that is not finished is resumed."""
    signal_name = stop.signal_name or "a signal to another process"
    return f"stopped by {signal_name} after step {state.step}: the same command resumes from there"


def open_run(config: PretrainConfig, accelerator: Accelerator) -> tuple[Task, Run, Path | None]:
    """Returns what is learned and what executes it, and the checkpoint to resume from, whose weights are loaded."""
    newest = newest_on_all_ranks(Path(config.run), accelerator)
    saved = read_state(newest.folder) if newest.folder else None
    precision, notes = run_precision(config.recipe.precision, saved, newest.folder)
    config, rows = training_rows(config, saved, accelerator)
    loaded, provenance = load_start(config, newest.folder, accelerator)
    extension = provenance.extension
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, config.start.checkpoint or str(config.start.tokenizer))
    check_rows_fit_model(rows, vocabulary, architecture_of(loaded.model).num_positions)
    prepare_model(loaded.model, extension, config)
    work = Work(
        rows.row_length,
        config.recipe.masking.selected_fraction,
        precision == "bf16",
        config.runtime.activation_checkpointing,
    )
    cost = cost_of(loaded.model, work)
    objective = MlmObjective(loaded.model, work.is_bf16)
    backend_kind = DeepSpeedBackend if accelerator.deepspeed_plugin else PlainBackend
    run = Run(
        folder=Path(config.run),
        accelerator=accelerator,
        backend=backend_kind.wrap(accelerator, objective.train(), config.recipe),
        runtime=config.runtime,
        cost=cost,
        peak_flops=(config.runtime.peak_flops or peak_flops()) if work.is_bf16 else None,
    )
    record = RunRecord(
        loaded.tokenizer, to_toml(config), config.recipe, provenance, training_record(config, rows, precision)
    )
    evaluation = RunEvaluation(
        objective=objective,
        frozen=held_out_rows(config, vocabulary),
        base_positions=extension.base_positions if extension else rows.row_length,
        base=extension.base if extension else None,
        tokenizer=loaded.tokenizer,
        num_examples=config.tracking.num_examples if config.tracking.tracker else 0,
        accelerator=accelerator,
    )
    batches = step_batches(config, rows, vocabulary, accelerator)
    seed_process(config.recipe.seed, accelerator.process_index)
    for note in (*loaded.notes, *newest.skipped, *notes, *batch_notes(config.recipe.batch_tokens, batches)):
        accelerator.print(note)
    return Task(batches, evaluation, record), run, newest.folder


def newest_on_all_ranks(folder: Path, accelerator: Accelerator) -> VerifiedCheckpoint:
    """Returns the newest intact checkpoint, which the main process verifies.

    Raises CheckpointError when there are checkpoints and none is intact, TrainingError on every rank when one sees
    another checkpoint, or none.
    """
    newest = broadcast_from_main(accelerator, lambda: newest_verified(folder))
    if newest.folder is not None:
        manifest = newest.folder / MANIFEST
        content = manifest.read_bytes() if manifest.is_file() else b""
        check_same_on_all_ranks(accelerator, content, f"another checkpoint than {newest.folder}, or none")
    return newest


def training_rows(
    config: PretrainConfig, saved: CheckpointState | None, accelerator: Accelerator
) -> tuple[PretrainConfig, Rows]:
    """Returns the settings, and the rows that they name; a resumed run keeps the commit of rows on the hub.

    One process of each machine verifies both splits, which takes its time: the others wait as for a download.
    """
    earlier = saved.rows if saved else None
    name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows, earlier))
    if name == earlier != config.rows:
        accelerator.print(f"{config.rows}: the rows stay those that the run started with, {name}")
    local_main_first(accelerator, lambda: [open_named_rows(name, split) for split in SPLITS])
    rows = open_named_rows(name, "train", verified=False)
    check_same_on_all_ranks(accelerator, rows.sha256, f"other rows in {name}")
    return replace(config, rows=name), rows


def load_start(
    config: PretrainConfig, resumed_from: Path | None, accelerator: Accelerator
) -> tuple[LoadedModel, Provenance]:
    """Returns the model of the checkpoint to resume, else the one that the run starts from, and its longmlm.json.

    A branch is resolved to a commit by the main process, for all ranks.
    """
    if resumed_from is not None:
        loaded = load_model(str(resumed_from))
        return loaded, loaded.provenance
    if config.start.checkpoint is None:
        loaded = new_model(str(config.start.architecture), str(config.start.tokenizer), config.recipe.seed)
        return loaded, loaded.provenance
    source = str(model_folder(config.start.checkpoint))
    commit = broadcast_from_main(accelerator, lambda: snapshot_of(source, config.start.revision).commit)
    loaded = load_model(source, commit or config.start.revision, config.start.new_head, config.recipe.seed)
    return loaded, loaded.provenance_of_run(source)


def prepare_model(model: PreTrainedModel, extension: Extension | None, config: PretrainConfig) -> None:
    """Applies to a loaded model what its files do not say: generated positions, dropout, activation checkpointing."""
    rebuild_positions(model, extension)
    if config.recipe.dropout is not None:
        set_dropout(model, config.recipe.dropout)
    if config.runtime.activation_checkpointing:
        checkpoint_activations(model)


def training_record(config: PretrainConfig, rows: Rows, precision: Literal["no", "bf16"]) -> TrainingRecord:
    """Returns what longmlm.json will say of the training, before the first step."""
    sources = rows.manifest.plan.sources
    return TrainingRecord(
        row_length=rows.row_length,
        steps=0,
        tokens=0,
        precision=precision,
        held_out=config.recipe.held_out,
        rows=config.rows if config.rows.startswith("hf:") else None,
        rows_sha256=rows.sha256,
        files_sha256=tuple(file.sha256 for source in sources for file in source.files),
        dataset_commits=tuple(source.commit for source in sources if source.commit),
    )


def step_batches(config: PretrainConfig, rows: Rows, vocabulary: Vocabulary, accelerator: Accelerator) -> StepBatches:
    """Returns this rank's training batches; the global batch is set in tokens, its rows follow from their mean fill."""
    recipe = Recipe(
        seed=config.recipe.seed,
        rows_per_step=rows_per_step(config.recipe.batch_tokens, rows, accelerator.num_processes),
        masking=config.recipe.masking,
        vocabulary=vocabulary.maskable,
        pad=vocabulary.special.pad,
    )
    share = (accelerator.process_index, accelerator.num_processes, config.runtime.rows_per_micro_batch)
    return StepBatches(rows, recipe, *share)


def held_out_rows(config: PretrainConfig, vocabulary: Vocabulary) -> FrozenRows:
    """Returns the held-out rows that the run evaluates."""
    rows = open_named_rows(config.rows, "held_out", verified=False)
    rows_per_batch = config.runtime.rows_per_evaluation_batch
    return FrozenRows(rows, config.recipe.held_out, vocabulary.maskable, vocabulary.special, rows_per_batch)


def batch_notes(batch_tokens: int, batches: StepBatches) -> list[str]:
    """Returns a line where whole rows make a global batch of quite another size than the recipe sets."""
    tokens = round(batches.rows_per_step * batches.rows.row_length * batches.rows.mean_fill)
    if abs(tokens - batch_tokens) <= NOTED_DEVIATION * batch_tokens:
        return []
    rows = f"{batches.rows_per_step} rows of {tokens:,} tokens in all"
    return [f"batch_tokens = {batch_tokens:,}, but a global batch is {rows}"]
