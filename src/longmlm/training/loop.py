"""The training loop: updates, evaluations, metrics and checkpoints in their order.

With num_steps = 8, log_every_steps = 2, evaluate_every_steps = 3, save_every_steps = 4:

    step       0   1   2   3   4   5   6   7   8
    update         x   x   x   x   x   x   x   x
    evaluate   x           x           x       x    step 0: the base model, then the model as it starts; the last step
    log                x       x       x       x    mean of the steps since the line before; every saved step
    save                       x               x    with the accuracy of this step, if it was evaluated; the last step

Step 6 is evaluated and not saved, so it cannot become the best checkpoint; step 4 is saved and not evaluated. A stop
signal in step 5 takes effect after its update: log, save, exit. One in the evaluation of step 6 abandons that
evaluation: step 6 is saved without an accuracy, and the resumed run evaluates it first. An evaluation after which the
run is over, as with stop_when_recovered, is followed by log and save, and the run exits.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile, TrainingMetrics
from longmlm.artifacts.run import TrainState
from longmlm.batches.collate import MlmBatch
from longmlm.errors import TrainingError, counted
from longmlm.folders import write_json, write_text
from longmlm.processes import ignore_stop_signals
from longmlm.progress import Progress, dated_line
from longmlm.runtime.collectives import any_rank, each_on_any_rank
from longmlm.runtime.launch import generator_states, peak_memory_bytes
from longmlm.runtime.memory import KEPT_BYTES, return_freed_memory
from longmlm.runtime.signals import Stop
from longmlm.runtime.watchdog import heartbeat
from longmlm.training.checkpoint import Saver, notes_on_threads, restore, resumable_state, saving
from longmlm.training.micro_batch import fitting_on_all_ranks, halve_micro_batches, micro_batch_of, undo_passes
from longmlm.training.run import Run, Task
from longmlm.training.run_folder import (
    BACKEND_SETTINGS,
    HEADER,
    SETTINGS,
    check_new_run,
    discard_partial_checkpoints,
)
from longmlm.training.update import Update, mean_of, one_update

GPU_LOADER_WORKERS = 2


class EvaluationStoppedError(Exception):
    """Raised on all ranks, which abandon the evaluation, when a stop signal has reached one of them."""


def start(task: Task, run: Run, resumed_from: Path | None) -> TrainState:
    """Returns the progress in the checkpoint, with optimizer and generators restored, or the start of a new run.

    A new run first measures its base model, which sets the accuracy to recover, and then its own model.
    """
    if resumed_from is None:
        _prepare_folder(task, run, None)
        base_chunks, base_cut = task.evaluation.baseline()
        new = TrainState(cursor=task.record.cursor, base_chunks=base_chunks, base_cut=base_cut)
        return evaluate(task, run, new, Stop())
    state = resumable_state(resumed_from, task.record)
    run.accelerator.print(f"resuming after step {state.step}, from {resumed_from}")
    if task.record.continuations:
        added = counted(task.record.continuations[-1].num_steps, "added step")
        run.accelerator.print(f"the run has {added}, and will end at step {task.num_steps}")
    for note in notes_on_threads(resumed_from, task.record):
        run.accelerator.print(note)
    _prepare_folder(task, run, state)
    restore(resumed_from, state, run)
    return state


def _prepare_folder(task: Task, run: Run, resumed: TrainState | None) -> None:
    """Writes the settings and removes the metrics that the run will write again.

    Raises TrainingError if a rank does not see the folder.
    """
    if run.accelerator.is_main_process:
        if resumed is None:
            check_new_run(run.folder)
        discard_partial_checkpoints(run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        write_text(run.folder / SETTINGS, f"{HEADER}{task.record.settings}")
        (run.folder / BACKEND_SETTINGS).unlink(missing_ok=True)
        if run.backend.settings:
            write_json(run.folder / BACKEND_SETTINGS, run.backend.settings)
        metrics = MetricsFile(run.folder)
        metrics.truncate(resumed.step, resumed.accuracy_here is not None) if resumed else metrics.truncate(-1)
        run.show(None)
    run.accelerator.wait_for_everyone()
    if any_rank(run.accelerator, not (run.folder / SETTINGS).is_file()):
        raise TrainingError(f"a process does not see {run.folder}: it must be on a disk that all machines share")


def train(task: Task, run: Run, state: TrainState, stop: Stop) -> TrainState:
    """Returns the state, which is saved, after the last step or the step in which a stop signal arrived.

    Raises TrainingError before an update that is not finite, CheckpointError when a checkpoint cannot be written.
    """
    window: list[tuple[Update, float]] = []
    num_steps, is_main = task.num_steps, run.accelerator.is_main_process
    with saving(run, task.record) as saver, Progress("step", num_steps, "step", state.step, is_main) as progress:
        if _is_evaluation_due(task, run, state) and state.accuracy_here is None:  # abandoned by a stop signal
            state = evaluate(task, run, state, stop)
            saver.save(state)
        if task.evaluation.is_over(state) or _is_stopping(run, stop, saver):
            if not state.step:
                saver.save(state)
            saver.finish()
            return state
        started = time.monotonic()
        task = fitting_on_all_ranks(task, run, state)
        loader = _loader(task, run, state)
        while (batches := next(loader, None)) is not None:
            stop.answer = f"finishing step {state.step + 1}, then saving"
            fitting, update = fitting_update(task, run, batches, state)
            return_freed_memory(KEPT_BYTES)
            seconds = time.monotonic() - started
            window.append((update, seconds))
            state = state.after_update(task.batches.rows_per_step, update.num_tokens, seconds, update.is_skipped)
            progress.move_to(state.step, update.progress_text(seconds))
            num_rows = fitting.batches.rows_per_micro_batch
            state = replace(state, micro_batch=micro_batch_of(run.runtime, run.accelerator.num_processes, num_rows))
            if fitting is not task:
                task, loader = fitting, _loader(fitting, run, state)
            is_stopping = _is_stopping(run, stop, saver)
            if _is_evaluation_due(task, run, state) and not is_stopping:
                state = evaluate(task, run, state, stop)
                is_stopping = _is_stopping(run, stop, saver) or task.evaluation.is_over(state)
            is_saved = is_stopping or state.step == num_steps or state.step % run.runtime.save_every_steps == 0
            if is_saved or state.step % run.runtime.log_every_steps == 0:  # so that a resumed run logs the same means
                _log(run, state, window, progress)
                window = []
            if is_saved:
                saver.save(state)
            if is_stopping:
                break
            started = time.monotonic()
        saver.finish()
    return state


def fitting_update(task: Task, run: Run, batches: Sequence[MlmBatch], state: TrainState) -> tuple[Task, Update]:
    """Makes one update, and returns it with a task whose micro-batches fit: they are halved when memory runs out.

    Raises what `one_update` raises, and TrainingError if memory is not sufficient.
    """
    generators = generator_states()
    while True:
        try:
            return task, one_update(task, run, batches, state)
        except RuntimeError as error:
            task = halve_micro_batches(task, run, state.step + 1, error)
        undo_passes(run, generators)
        batches = task.batches[state.cursor]


def evaluate(task: Task, run: Run, state: TrainState, stop: Stop) -> TrainState:
    """Returns the state with the accuracy now, which is appended to the metrics; unchanged if a stop signal arrived."""

    def between_rows() -> None:
        heartbeat()
        if any_rank(run.accelerator, bool(stop)):
            raise EvaluationStoppedError

    stop.answer = "stopping the evaluation, then saving"
    try:
        held_out, pairs, examples = task.evaluation.measure(between_rows)
    except EvaluationStoppedError:
        return state
    finally:
        return_freed_memory()
    accuracy = held_out.whole.accuracy
    state = state.after_evaluation(held_out, pairs)
    chunks, cut = state.base_chunks, state.base_cut
    if run.accelerator.is_main_process:
        line = EvaluationMetrics(
            step=state.step,
            tokens=state.tokens,
            held_out=held_out,
            base_chunks=chunks.whole.accuracy if chunks else None,
            base_chunks_error=chunks.whole.standard_error if chunks else None,
            base_chunks_by_source={name: one.whole for name, one in chunks.sources.items()} if chunks else {},
            base_chunks_by_occurrence=chunks.groups.get("occurrence", {}) if chunks else {},
            base_cut=cut.accuracy if cut else None,
            base_cut_error=cut.standard_error if cut else None,
            recovery=state.recovery,
            recovered_at_step=state.recovered_at_step,
            recovered_at_tokens=state.recovered_at_tokens,
            examples=examples,
            pairs=pairs,
        )
        run.record(line)
        base = "" if line.base_chunks is None else f", the base model's is {line.base_chunks:.2f} % in chunks"
        reached = "–" if accuracy is None else f"{accuracy:.2f} %"
        of_pairs = f", pair accuracy {pairs}" if pairs else ""
        dated_line(f"step {state.step}/{task.num_steps} held-out accuracy {reached}{base}{of_pairs}")
    return state


def _is_evaluation_due(task: Task, run: Run, state: TrainState) -> bool:
    return state.step == task.num_steps or state.step % run.runtime.evaluate_every_steps == 0


def _is_stopping(run: Run, stop: Stop, saver: Saver) -> bool:
    """Returns whether a stop signal reached any rank; raises CheckpointError when a checkpoint was not written."""
    is_stopping, has_failed = each_on_any_rank(run.accelerator, bool(stop), saver.has_failed())
    if has_failed:
        saver.finish()
    return is_stopping


def _loader(task: Task, run: Run, state: TrainState) -> Iterator[tuple[MlmBatch, ...]]:
    """Yields the micro-batches of each step left; a generator of its own leaves dropout's untouched."""
    rows_per_step, num_workers = task.batches.rows_per_step, run.runtime.num_loader_workers
    if num_workers is None:
        num_workers = GPU_LOADER_WORKERS if torch.cuda.is_available() else 0
    end = state.cursor + (task.num_steps - state.step) * rows_per_step
    loader = DataLoader(
        task.batches,
        batch_size=None,
        sampler=range(state.cursor, end, rows_per_step),
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
        worker_init_fn=ignore_stop_signals,
    )
    return iter(loader)


def _log(run: Run, state: TrainState, window: Sequence[tuple[Update, float]], progress: Progress) -> None:
    """Shows the means over the steps of the window whose loss is finite, and appends them to the metrics."""
    updates = [update for update, _ in window if math.isfinite(update.loss)]
    if not updates:
        progress.report(state.step, f"no finite loss, {state.skipped_steps} skipped")
        return
    by_target = {target: [update.targets[target] for update in updates] for target in updates[0].targets}
    num_tokens = sum(update.num_tokens for update, _ in window)
    speed = num_tokens / sum(seconds for _, seconds in window)
    line = TrainingMetrics(
        step=state.step,
        tokens=state.tokens,
        targets={target: mean_of(own) for target, own in by_target.items() if any(one.count for one in own)},
        learning_rate=updates[-1].learning_rate,
        gradient_norm=next((update.gradient_norm for update in reversed(updates) if not update.is_skipped), None),
        tokens_per_second=speed,
        elapsed_seconds=state.training_seconds,
        memory_bytes=peak_memory_bytes(),
        mfu=speed / run.peak_tokens_per_second if run.peak_tokens_per_second else None,
        padding_percent=100 * (1 - num_tokens / sum(update.num_with_padding for update, _ in window)),
        skipped_steps=state.skipped_steps,
    )
    means = [f"{target} loss {mean.loss:.3f} accuracy {mean.accuracy:.1f} %" for target, mean in line.targets.items()]
    means += [f"lr {line.learning_rate:.1e} {speed:,.0f} tokens/s"]
    means += [f"{state.skipped_steps} skipped"] if state.skipped_steps else []
    progress.report(state.step, " ".join(means))
    if run.accelerator.is_main_process:
        run.record(line)
