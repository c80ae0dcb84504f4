"""Batches to updates: the loop, with its evaluations, checkpoints and record."""

import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.run import TrainState
from longmlm.batches.collate import MlmBatch
from longmlm.errors import TrainingError
from longmlm.evaluation.examples import filled_masks
from longmlm.evaluation.measure import measure
from longmlm.evaluation.views import cut, whole
from longmlm.folders import PARTIAL, write_json
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.processes import ignore_stop_signals
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.memory import peak_memory_bytes
from longmlm.runtime.signals import Stop
from longmlm.runtime.watchdog import heartbeat
from longmlm.training import checkpoint, tracking
from longmlm.training.run import Run
from longmlm.training.saver import saving
from longmlm.training.update import Update, one_update


def begin(run: Run, resumed_from: Path | None) -> TrainState:
    """Returns the state in the checkpoint, with optimizer and generators put back, or that of a new run.

    A new run has its base model measured first: the accuracy that training must win back.
    """
    state = TrainState()
    if resumed_from is not None:
        state = checkpoint.resumable_state(resumed_from, run.record)
        checkpoint.restore(resumed_from, run.trained)
    if run.accelerator.is_main_process:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "settings.toml").write_text(run.record.settings, encoding="utf-8")
        if run.accelerator.deepspeed_plugin is None:
            (run.folder / "deepspeed.json").unlink(missing_ok=True)
        else:
            write_json(run.folder / "deepspeed.json", run.accelerator.deepspeed_plugin.deepspeed_config)
        tracking.forget_after(run.folder, -1 if resumed_from is None else state.step)
        for half in (run.folder / "checkpoints").glob(f"*{PARTIAL}"):
            shutil.rmtree(half)
    run.accelerator.wait_for_everyone()
    if any(any_rank(run.accelerator, not (run.folder / "settings.toml").is_file())):
        raise TrainingError(f"a process does not see {run.folder}: it must lie on a disk that all machines share")
    return state if resumed_from is not None else evaluated(run, replace(state, base_cut=_base_cut(run)))


def _base_cut(run: Run) -> float | None:
    if (extension := run.record.provenance.extension) is None:
        return None
    base, revision = extension.base.name, extension.base.revision
    is_missing = revision is None and not Path(base).is_dir()  # a released model names a local base by its last part
    if any(any_rank(run.accelerator, is_missing)):
        run.accelerator.print(f"the base model {base} is not on this machine: base_cut is not measured")
        return None
    model = load_model(base, revision).model.to(run.accelerator.device)
    heartbeat()
    view = partial(cut, base_positions=run.block, special=run.held_out.special)
    objective = MlmObjective(model, run.inner.is_bf16)
    measured = measure(objective, run.held_out, view, run.block, run.accelerator, "base model")
    return measured.whole.accuracy


def train(run: Run, state: TrainState, stop: Stop) -> TrainState:
    """Returns the state at the last step, or at the step in which the run was asked to stop; it is saved.

    Raises TrainingError before an update that loss or gradient would spoil, CheckpointError when the disk is full.
    """
    window: list[tuple[Update, float]] = []
    with saving(run) as saver, _progress(run, state) as bar:
        if should_stop(run, state):
            if not state.step:
                saver.save(state)
            saver.finish()
            return state
        started = time.monotonic()
        for batches in _loader(run, state):
            update = one_update(run, batches, state)
            seconds = time.monotonic() - started
            state = state.after_update(run.batches.recipe.rows_per_step, update.num_tokens, seconds)
            window.append((update, seconds))
            stopping, failed = any_rank(run.accelerator, bool(stop), saver.has_failed())
            if failed:
                saver.finish()
            is_last = state.step == run.recipe.num_steps
            is_saved = is_last or stopping or state.step % run.runtime.save_every_steps == 0
            if is_saved or state.step % run.runtime.log_every_steps == 0:  # so that a resumed run logs the same means
                _log(run, state, window, bar)
                window = []
            if is_last or state.step % run.runtime.evaluate_every_steps == 0:
                state = evaluated(run, state)
            ends = stopping or should_stop(run, state)
            if ends and window:
                _log(run, state, window, bar)
            if is_saved or ends:
                saver.save(state)
            if ends:
                break
            started = time.monotonic()
        saver.finish()
    return state


def evaluated(run: Run, state: TrainState) -> TrainState:
    """Returns the state with the held-out accuracy at full length, which is written down."""
    measured = measure(run.inner, run.held_out, whole, run.block, run.accelerator, "evaluate")
    assert measured.whole.accuracy is not None  # held-out rows are never empty
    state = state.after_evaluation(measured.whole.accuracy)
    line = evaluation_line(state, measured) | _examples(run)
    if run.accelerator.is_main_process:
        tracking.append(run.folder, line)
    return state


def _examples(run: Run) -> dict[str, object]:
    """Returns what the model fills in near the end of some rows; every process asks it, as a shared model wants."""
    if not run.num_examples:
        return {}
    here = run.accelerator.device
    found = filled_masks(run.inner, run.record.tokenizer, run.held_out, run.num_examples, here)
    return {"examples": [asdict(example) for example in found]}


def evaluation_line(state: TrainState, measured: Measured) -> dict[str, object]:
    """Returns an evaluation as a line of metrics, which holds blocks and nothing finer."""
    return {
        "step": state.step,
        "tokens": state.tokens,
        "held_out": {"whole": asdict(measured.whole), "blocks": [asdict(block) for block in measured.blocks]},
        "base_cut": state.base_cut,
        "recovered_at_step": state.recovered_at_step,
        "recovered_at_tokens": state.recovered_at_tokens,
    }


def write_summary(run: Run, state: TrainState) -> str:
    """Writes summary.json into the run folder, and returns how the run stands in a few lines."""
    speeds = [line["tokens_per_second"] for line in tracking.read(run.folder) if "tokens_per_second" in line]
    content = {
        **asdict(state),
        "train_tokens_per_second": statistics.median(speeds) if speeds else None,
        "num_processes": run.accelerator.num_processes,
        "peak_memory_bytes": peak_memory_bytes(),
    }
    write_json(run.folder / "summary.json", content)
    reached = f"held-out accuracy {state.accuracy:.2f} % at step {state.evaluated_at_step}"
    if state.base_cut is None:
        return reached
    recovered = "not yet" if state.recovered_at_step is None else f"at step {state.recovered_at_step}"
    return f"{reached}; the base model's {state.base_cut:.2f} % recovered: {recovered}"


def _loader(run: Run, state: TrainState) -> Iterator[tuple[MlmBatch, ...]]:
    """Yields the micro-batches of each step that is left; an own generator leaves dropout's alone."""
    workers, num_rows = run.runtime.num_loader_workers, run.batches.recipe.rows_per_step
    end = state.cursor + (run.recipe.num_steps - state.step) * num_rows
    loader: DataLoader[tuple[MlmBatch, ...]] = DataLoader(
        run.batches,
        batch_size=None,
        sampler=range(state.cursor, end, num_rows),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
        worker_init_fn=ignore_stop_signals,
    )
    return iter(loader)


def should_stop(run: Run, state: TrainState) -> bool:
    """Says whether the run ends here since what was lost is won back."""
    return run.runtime.stop_when_recovered and state.recovered_at_step is not None


def _progress(run: Run, state: TrainState) -> tqdm:
    is_quiet = not run.accelerator.is_main_process
    return tqdm(total=run.recipe.num_steps, initial=state.step, desc="pretrain", unit="step", disable=is_quiet)


def _log(run: Run, state: TrainState, window: Sequence[tuple[Update, float]], bar: tqdm) -> None:
    updates = [update for update, _ in window]
    num_selected = sum(update.num_selected for update in updates)
    loss = sum(update.loss * update.num_selected for update in updates) / num_selected
    accuracy = sum(update.accuracy * update.num_selected for update in updates) / num_selected
    speed = sum(update.num_tokens for update in updates) / sum(seconds for _, seconds in window)
    bar.set_postfix_str(
        f"loss {loss:.3f}, accuracy {accuracy:.1f} %, lr {updates[-1].learning_rate:.1e}, {speed:,.0f} tokens/s",
        refresh=False,
    )
    bar.update(state.step - bar.n)
    if run.accelerator.is_main_process:
        line = {
            "step": state.step,
            "tokens": state.tokens,
            "loss": loss,
            "accuracy": accuracy,
            "learning_rate": updates[-1].learning_rate,
            "gradient_norm": updates[-1].gradient_norm,
            "tokens_per_second": speed,
            "elapsed_seconds": state.training_seconds,
            "memory_bytes": peak_memory_bytes(),
        }
        if run.peak_flops:
            line["mfu"] = speed * run.cost.flop_per_token / (run.peak_flops * run.accelerator.num_processes)
        tracking.append(run.folder, line)
