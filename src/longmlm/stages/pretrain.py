"""The pretrain stage: trains a checkpoint or a new model on packed rows; the same command resumes."""

import runpy
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __name__ == "__main__":  # accelerate launch -m longmlm.stages.pretrain: the same as python -m longmlm pretrain
    sys.argv.insert(1, "pretrain")
    runpy.run_module("longmlm", run_name="__main__")
    sys.exit()

from accelerate import Accelerator

from longmlm.artifacts.artifact import PAGE_FILE, present, to_toml
from longmlm.artifacts.rows import SPLITS, check_rows_fit_recipe
from longmlm.artifacts.run import CheckpointState, Continuation, recovered_before_continuation
from longmlm.batches.steps import Recipe, StepBatches, batch_notes, check_rows_fit_model
from longmlm.data.rows import Rows, open_named_rows, pin_rows
from longmlm.data.vocabulary import Vocabulary, vocabulary_of_pretrained
from longmlm.errors import TrainingError
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import check_packed_attention
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.folders import MANIFEST, sha256_of
from longmlm.hubs.models import snapshot_of
from longmlm.model.architecture import architecture_of, set_dropout
from longmlm.model.cost import Work, cost_of, document_length, peak_flops
from longmlm.model.families import check_can_learn
from longmlm.model.loading import LoadedModel, load_for_pairs, load_model, new_model
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import ATTENTION_NAME, attention_name, use_packed_attention
from longmlm.model.position_table import rebuild_positions
from longmlm.processes import exclusive_lock, has_parent
from longmlm.runtime.collectives import broadcast_from_main, check_same_on_all_ranks, local_main_first
from longmlm.runtime.launch import launch, resolved_precision, seed_process, shut_down
from longmlm.runtime.signals import stop_on_signal, stopped_by
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.masking import pair_kind
from longmlm.settings.pretrain import ComputePrecision, PretrainConfig, Tracking
from longmlm.training.backend import PARTITIONED_PARAMETERS, is_launched_with_deepspeed, new_backend, zero_stage
from longmlm.training.checkpoint import check_room, first_cursor, run_precision
from longmlm.training.loop import start, train
from longmlm.training.micro_batch import rows_per_evaluation_batch, rows_per_micro_batch
from longmlm.training.run import Run, RunRecord, Task, description, training_record, write_summary
from longmlm.training.run_folder import (
    check_still_newest,
    continuations_of,
    model_or_best_checkpoint,
    newest_verified,
    read_state,
)
from longmlm.training.tracker import check_installed, tracked


def pretrain(config: PretrainConfig) -> None:
    """Trains to the last step or a stop signal, resuming from the newest intact checkpoint if there is one."""
    check_installed(config.tracking.tracker)
    runtime = config.runtime
    precision = resolved_precision(config.recipe.precision)
    deepspeed = None
    if is_launched_with_deepspeed():
        from longmlm.training.deepspeed_backend import plugin_of_launch  # most runs need none of it

        deepspeed = plugin_of_launch(config.recipe.max_gradient_norm)
    accelerator = launch(precision, runtime.num_processes, runtime.num_threads, runtime.hang_seconds, deepspeed)
    if not config.dry_run and not has_parent():  # longmlm run has printed the path
        accelerator.print(f"page: {Path(config.run) / PAGE_FILE}")
    task, run, resumed_from = open_run(config, accelerator)
    if config.dry_run:
        from longmlm.planning.dry_run import dry_run  # a run itself needs none of it

        accelerator.print(dry_run(task, run, resumed_from))
    else:
        execute(config, task, run, resumed_from)
    del task, run
    shut_down(accelerator)


def execute(config: PretrainConfig, task: Task, run: Run, resumed_from: Path | None) -> None:
    """Trains, with a page and a tracker, while no other process writes to the run folder."""
    from longmlm.reports.pages import made_with  # not needed by importers of this stage
    from longmlm.reports.training import TrainingPage

    is_main, made_by = run.accelerator.is_main_process, made_with("pretrain", present(asdict(config)))
    check_room(run, task)
    with (
        exclusive_lock(run.folder) if is_main else nullcontext(),
        watchdog(config.runtime.hang_seconds, run.accelerator.process_index),
    ):
        if is_main:
            check_still_newest(run.folder, resumed_from)
        with TrainingPage(run.folder, task.num_steps, description(task, run), made_by, is_main) as page:
            tracking = config.tracking if is_main else Tracking()
            with (
                ExitStack() as signals,  # outside the tracker's block, so that a stop signal waits for its end
                tracked(run.folder, tracking, task.record.settings, resumed_from, page.show) as show,
            ):
                run = replace(run, show=show)
                state = start(task, run, resumed_from)
                stop = signals.enter_context(stop_on_signal(f"finishing step {state.step + 1}, then saving"))
                page.start(state.step)
                state = train(task, run, state, stop)
            if is_main:
                print(write_summary(run, state))
                ending = "finished"
                if stop or (state.step < task.num_steps and not task.evaluation.is_over(state)):
                    signal_name = stop.signal_name or "a signal to another process"
                    ending = f"{stopped_by(signal_name)} after step {state.step}: the same command resumes from there"
                    print(ending)
                page.end(ending)


def open_run(config: PretrainConfig, accelerator: Accelerator) -> tuple[Task, Run, Path | None]:
    """Returns the task, the run that executes it, and the checkpoint to resume from, whose weights are loaded.

    Raises CheckpointError when there are checkpoints and none is intact, TrainingError on every rank when one sees a
    different checkpoint, or none.
    """
    begin = resume_point(config, accelerator)
    config, rows = training_rows(config, begin.saved, accelerator)
    loaded, vocabulary = load_start(config, begin, rows, accelerator)
    run = new_run(config, accelerator, loaded, rows, begin.precision)
    record = new_record(config, begin, loaded, rows, accelerator)
    evaluation = run_evaluation(config, run, record, vocabulary, begin.saved)
    batches = step_batches(run, record, rows, vocabulary, begin.saved)
    seed_process(config.recipe.seed, accelerator.process_index)
    return Task(batches, evaluation, record), run, begin.checkpoint


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The newest intact checkpoint and its state (None if there is none), and what the run takes over from them."""

    checkpoint: Path | None
    saved: CheckpointState | None
    continuations: tuple[Continuation, ...]
    precision: ComputePrecision
    notes: tuple[str, ...]


def resume_point(config: PretrainConfig, accelerator: Accelerator) -> ResumePoint:
    """Returns where the run begins, the same on all ranks; the main process verifies the checkpoints."""
    newest = broadcast_from_main(accelerator, lambda: newest_verified(Path(config.run)))
    saved = None
    if newest.folder is not None:
        manifest = newest.folder / MANIFEST
        content = manifest.read_bytes() if manifest.is_file() else b""
        check_same_on_all_ranks(accelerator, content, f"a different checkpoint than {newest.folder}, or none")
        saved = read_state(newest.folder)
    continuations = continuations_of(config, saved)
    precision, notes = run_precision(config.recipe.precision, saved, newest.folder)
    return ResumePoint(newest.folder, saved, continuations, precision, (*newest.skipped, *notes))


def training_rows(
    config: PretrainConfig, saved: CheckpointState | None, accelerator: Accelerator
) -> tuple[PretrainConfig, Rows]:
    """Returns the settings, and the rows that they name; a resumed run keeps the commit of rows on the hub.

    One process of each machine verifies both splits; the others wait as for a download.
    """
    previous = saved.rows if saved else None
    name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows, previous))
    if name == previous != config.rows:
        accelerator.print(f"{config.rows}: the rows stay those that the run started with, {name}")
    local_main_first(accelerator, lambda: [open_named_rows(name, split) for split in SPLITS])
    rows = open_named_rows(name, "train", verified=False)
    check_rows_fit_recipe(rows.manifest, config.recipe, name)
    check_same_on_all_ranks(accelerator, rows.sha256, f"other rows in {name}")
    return replace(config, rows=name), rows


def load_start(
    config: PretrainConfig, begin: ResumePoint, rows: Rows, accelerator: Accelerator
) -> tuple[LoadedModel, Vocabulary]:
    """Returns the model of the checkpoint to resume, else the one that the run starts from, ready to train on the rows.

    The main process chooses a run's best checkpoint and resolves a branch to a commit, for all ranks.
    """
    start, recipe = config.start, config.recipe
    load = load_for_pairs if recipe.pairs else load_model
    if begin.checkpoint is not None:
        loaded = load(str(begin.checkpoint))
    elif start.checkpoint is None:
        loaded = new_model(str(start.architecture), str(start.tokenizer), recipe.seed, recipe.pairs is not None)
    else:
        name = broadcast_from_main(accelerator, lambda: model_or_best_checkpoint(str(start.checkpoint)))
        commit = broadcast_from_main(accelerator, lambda: snapshot_of(name, start.revision).commit)
        loaded = load(name, commit or start.revision, start.new_head, recipe.seed)
        loaded = replace(loaded, provenance=loaded.provenance_of_run(name, start.revision))
    for note in (*loaded.notes, *loaded.carried.lines, *begin.notes):
        accelerator.print(note)
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, start.checkpoint or str(start.tokenizer))
    num_positions, extension = architecture_of(loaded.model).num_positions, loaded.provenance.extension
    check_rows_fit_model(rows, vocabulary, num_positions, start.name, pair_kind(recipe.pairs))
    check_can_learn(recipe, loaded.model.config, start.name, extension)
    rebuild_positions(loaded.model, extension)
    if recipe.dropout is not None:
        set_dropout(loaded.model, recipe.dropout)
    use_packed_attention(loaded.model)
    return loaded, vocabulary


def new_run(
    config: PretrainConfig, accelerator: Accelerator, loaded: LoadedModel, rows: Rows, precision: ComputePrecision
) -> Run:
    """Returns the run of a model, wrapped for its backend, with the cost of a step."""
    recipe, runtime = config.recipe, config.runtime
    is_half, lengths = precision != "no", rows.manifest.report.train.document_lengths
    work = Work(
        row_length=rows.row_length,
        selected_fraction=recipe.masking.selected_fraction,
        is_half=is_half,
        is_checkpointed=runtime.activation_checkpointing,
        has_all_logits=zero_stage(accelerator) == PARTITIONED_PARAMETERS,
        document_length=document_length(lengths, rows.row_length) if recipe.isolate_documents else None,
    )
    objective = MlmObjective(loaded.model, precision, recipe.isolate_documents)
    cost, num_parameters = cost_of(loaded.model, work), loaded.model.num_parameters()
    if runtime.activation_checkpointing:
        checkpoint_activations(loaded.model)
    peak = (runtime.peak_flops or peak_flops()) if is_half else None
    return Run(
        folder=Path(config.run),
        accelerator=accelerator,
        backend=new_backend(accelerator, objective.train(), replace(recipe, precision=precision)),
        runtime=runtime,
        num_parameters=num_parameters,
        cost=cost,
        peak_tokens_per_second=peak and peak * accelerator.num_processes / cost.flop_per_token,
    )


def new_record(
    config: PretrainConfig, begin: ResumePoint, loaded: LoadedModel, rows: Rows, accelerator: Accelerator
) -> RunRecord:
    """Returns what each checkpoint records about the run; a resumed run keeps its first cursor and architecture."""
    saved, provenance, architecture = begin.saved, loaded.provenance, config.start.architecture
    if saved:
        cursor, architecture_sha256 = saved.first_cursor, saved.architecture_sha256
    else:
        cursor = first_cursor(provenance.started_from, rows, config.recipe, accelerator)
        architecture_sha256 = sha256_of(Path(architecture)) if architecture else None
    return RunRecord(
        tokenizer=loaded.tokenizer,
        settings=to_toml(replace(config, more_steps=None)),
        recipe=config.recipe,
        provenance=provenance,
        trained_on=training_record(config.recipe, rows, config.rows, begin.precision),
        carried=loaded.carried,
        cursor=cursor,
        rows_plan=rows.manifest.plan,
        architecture_sha256=architecture_sha256,
        continuations=begin.continuations,
    )


def run_evaluation(
    config: PretrainConfig, run: Run, record: RunRecord, vocabulary: Vocabulary, saved: CheckpointState | None
) -> RunEvaluation:
    """Returns what measures the model of a run on the held-out rows, and prints how its attention was checked."""
    extension, stops = record.provenance.extension, config.runtime.stop_when_recovered
    if stops and extension is None:
        raise TrainingError("runtime.stop_when_recovered is for a long model, and this was not extended: remove it")
    held_out, objective = open_named_rows(config.rows, "held_out", verified=False), run.backend.objective
    masks = (config.recipe.held_out, vocabulary.maskable, vocabulary.special)
    size, pairs = rows_per_evaluation_batch(run), pair_kind(config.recipe.pairs)
    frozen = FrozenRows(held_out, *masks, size, pairs, objective.isolates_documents)
    check_rows_fit_model(held_out, vocabulary, pairs=pairs)
    if attention_name(objective.encoder) == ATTENTION_NAME and run.accelerator.device.type != "cpu":
        for note in check_packed_attention(objective, frozen):
            run.accelerator.print(note)
    has_recovered = saved is not None and recovered_before_continuation(saved.state, record.continuations)
    return RunEvaluation(
        objective=objective,
        frozen=frozen,
        base_positions=extension.base_positions if extension else held_out.row_length,
        base=extension.base if extension else None,
        tokenizer=record.tokenizer,
        num_examples=config.tracking.num_examples,
        accelerator=run.accelerator,
        stops_when_recovered=stops and not has_recovered,
    )


def step_batches(
    run: Run, record: RunRecord, rows: Rows, vocabulary: Vocabulary, saved: CheckpointState | None
) -> StepBatches:
    """Returns this rank's training batches, in micro-batches that fit into memory, and prints notes on them."""
    accelerator, recipe = run.accelerator, record.recipe
    drawn = Recipe.of(recipe, rows, vocabulary, accelerator.num_processes, record.provenance.first_epoch)
    for note in batch_notes(recipe, rows, drawn.rows_per_step, drawn.tokens_per_step(rows)):
        accelerator.print(note)
    if run.backend.objective.reads_packed_batches:
        drawn = replace(drawn, pad=None)
    previous = saved.state.micro_batch if saved else None
    per_micro_batch = rows_per_micro_batch(run, drawn.rows_per_step, rows.row_length, previous)
    return StepBatches(rows, drawn, accelerator.process_index, accelerator.num_processes, per_micro_batch)
