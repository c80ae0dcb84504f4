"""Packed rows and a checkpoint to a trained model, with Accelerate; the same command resumes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.rows import SPLITS
from longmlm.batches.steps import Recipe, StepBatches, check_rows_fit_model, rows_per_step
from longmlm.config import to_toml
from longmlm.data.published import open_named_rows, pin_rows
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary, vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows
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
from longmlm.runtime.signals import stop_on_signal
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training import checkpoint
from longmlm.training.checkpoint import VerifiedCheckpoint, check_still_newest, rows_in
from longmlm.training.deepspeed_backend import plugin_of_launch, prepared
from longmlm.training.dry_run import dry_run
from longmlm.training.loop import begin, should_stop, train, write_summary
from longmlm.training.optimizer import new_optimizer
from longmlm.training.precision import precision_of_run
from longmlm.training.run import Run
from longmlm.training.tracking import SETTINGS, require, tracked


def pretrain(config: PretrainConfig) -> None:
    """Trains until the last step, or until it is asked to stop, from the newest sound checkpoint on."""
    require(config.tracking.tracker)
    runtime = config.runtime
    deepspeed = plugin_of_launch(config.recipe.max_gradient_norm)
    accelerator = launch(runtime.num_processes, runtime.num_threads, runtime.hang_seconds, deepspeed)
    run, resumed_from = open_run(config, accelerator)
    if config.dry_run:
        rehearsed = dry_run(run, resumed_from)
        if accelerator.is_main_process:
            print(rehearsed)
        del run
        shut_down(accelerator)
        return
    with (
        exclusive_lock(run.folder) if accelerator.is_main_process else nullcontext(),
        watchdog(runtime.hang_seconds, accelerator.process_index),
        stop_on_signal() as stop,
    ):
        if accelerator.is_main_process:
            check_still_newest(run.folder, resumed_from)
        state = begin(run, resumed_from)
        tracker = config.tracking.tracker if accelerator.is_main_process else None
        with tracked(run.folder, tracker, after=-1 if resumed_from is None else state.step):
            state = train(run, state, stop)
    if accelerator.is_main_process:
        print(write_summary(run, state))
        if stop or (state.step < run.recipe.num_steps and not should_stop(run, state)):
            by = stop.signal_name or "a signal to another process"
            print(f"stopped by {by} after step {state.step}: the same command goes on from there")
    del run
    shut_down(accelerator)


def open_run(config: PretrainConfig, accelerator: Accelerator) -> tuple[Run, Path | None]:
    """Returns the run, with the weights of its newest sound checkpoint or of its beginning, and that checkpoint."""
    folder = Path(config.run)
    sound = newest_seen_by_all(folder, accelerator)
    precision, said = precision_of_run(config.recipe.precision, sound.folder)
    config, rows = training_rows(config, sound.folder, accelerator)
    loaded, provenance = load_start(config, sound.folder, accelerator)
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, config.start.checkpoint or str(config.start.tokenizer))
    check_rows_fit_model(rows, vocabulary, architecture_of(loaded.model).num_positions)
    rebuild_positions(loaded.model, provenance.extension)
    if config.recipe.dropout is not None:
        set_dropout(loaded.model, config.recipe.dropout)
    if config.runtime.activation_checkpointing:
        checkpoint_activations(loaded.model)
    is_bf16 = precision == "bf16"
    work = Work(
        rows.row_length, config.recipe.masking.selected_fraction, is_bf16, config.runtime.activation_checkpointing
    )
    cost = cost_of(loaded.model, work)
    objective: nn.Module = MlmObjective(loaded.model, is_bf16).train()
    optimizer = new_optimizer(objective, config.recipe)
    parameters = tuple(parameter for group in optimizer.param_groups for parameter in group["params"])
    if accelerator.deepspeed_plugin is None:
        objective = accelerator.prepare_model(objective)
    else:
        objective, optimizer = prepared(accelerator, objective, optimizer)
    depends_on = {
        "recipe": {key: value for key, value in asdict(config.recipe).items() if key != "held_out"},
        "start": asdict(config.start),
        "rows": {
            "sha256": rows.sha256,
            "row_length": rows.row_length,
            "files_sha256": rows.manifest.plan.files_sha256,
            "dataset_commits": rows.manifest.plan.dataset_commits,
        },
        "held_out": asdict(config.recipe.held_out),
    }
    run = Run(
        folder=folder,
        accelerator=accelerator,
        objective=objective,
        optimizer=optimizer,
        parameters=parameters,
        batches=step_batches(config, rows, vocabulary, accelerator),
        held_out=frozen_rows(config, vocabulary),
        block=provenance.extension.base_positions if provenance.extension else rows.row_length,
        recipe=config.recipe,
        runtime=config.runtime,
        record=checkpoint.RunRecord(loaded.tokenizer, to_toml(config), as_json(depends_on), provenance, precision),
        cost=cost,
        peak_flops=(config.runtime.peak_flops or peak_flops()) if work.is_bf16 else None,
        num_examples=config.tracking.num_examples if config.tracking.tracker else 0,
    )
    seed_process(config.recipe.seed, accelerator.process_index)
    if accelerator.is_main_process:
        for line in (*loaded.notes, *sound.skipped, *said):
            print(line)
    return run, sound.folder


def newest_seen_by_all(folder: Path, accelerator: Accelerator) -> VerifiedCheckpoint:
    """Returns the newest sound checkpoint, which the main process verifies.

    Raises CheckpointError when there are some and none is sound, TrainingError in every process when one sees another
    in its place, or none.
    """
    sound = broadcast_from_main(accelerator, lambda: checkpoint.newest_verified(folder))
    if sound.folder is not None:
        manifest = sound.folder / MANIFEST
        content = manifest.read_bytes() if manifest.is_file() else b""
        check_same_on_all_ranks(accelerator, content, f"another checkpoint than {sound.folder}, or none")
    return sound


def training_rows(
    config: PretrainConfig, resumed_from: Path | None, accelerator: Accelerator
) -> tuple[PretrainConfig, Rows]:
    """Returns the settings, and the rows that they name, those on the hub at the commit with which the run began.

    One process of each machine verifies both splits, which takes its time: the others wait as for a download.
    """
    earlier = rows_in((resumed_from / SETTINGS).read_text(encoding="utf-8")) if resumed_from else ""
    name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows, earlier))
    if accelerator.is_main_process and name == earlier != config.rows:
        print(f"{config.rows}: the rows stay those with which the run began, {name}")
    local_main_first(accelerator, lambda: [open_named_rows(name, split) for split in SPLITS])
    rows = open_named_rows(name, "train", verified=False)
    check_same_on_all_ranks(accelerator, rows.sha256, f"other rows in {name}")
    return replace(config, rows=name), rows


def load_start(
    config: PretrainConfig, resumed_from: Path | None, accelerator: Accelerator
) -> tuple[LoadedModel, Provenance]:
    """Returns the model of the checkpoint to resume, else the one that the run starts with, and its history.

    What a branch means the main process asks for all.
    """
    if resumed_from is not None:
        loaded = load_model(str(resumed_from))
        return loaded, loaded.provenance
    if config.start.checkpoint is None:
        loaded = new_model(str(config.start.architecture), str(config.start.tokenizer), config.recipe.seed)
        return loaded, loaded.provenance
    source = str(checkpoint.model_folder(config.start.checkpoint))
    commit = broadcast_from_main(accelerator, lambda: snapshot_of(source, config.start.revision).commit)
    loaded = load_model(source, commit or config.start.revision, config.start.new_head, config.recipe.seed)
    return loaded, loaded.provenance_of_run(source)


def step_batches(config: PretrainConfig, rows: Rows, vocabulary: Vocabulary, accelerator: Accelerator) -> Any:
    """Returns what this process trains on; the global batch is set in tokens, so its rows follow from their fill."""
    recipe = Recipe(
        seed=config.recipe.seed,
        rows_per_step=rows_per_step(config.recipe.batch_tokens, rows, accelerator.num_processes),
        masking=config.recipe.masking,
        vocabulary=vocabulary.maskable,
        pad=vocabulary.special.pad,
    )
    share = (accelerator.process_index, accelerator.num_processes, config.runtime.rows_per_micro_batch)
    return StepBatches(rows, recipe, *share)


def frozen_rows(config: PretrainConfig, vocabulary: Vocabulary) -> Any:
    """Returns the held-out rows that the run evaluates."""
    rows = open_named_rows(config.rows, "held_out", verified=False)
    return FrozenRows(rows, config.recipe.held_out, vocabulary.maskable, vocabulary.special)


def as_json(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the content as a reader of its JSON sees it."""
    return json.loads(json.dumps(content))
