"""Batches to updates: the loop, with its evaluations, checkpoints and record."""

import math
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from longmlm.errors import TrainingError
from longmlm.evaluation.examples import filled_masks
from longmlm.evaluation.held_out import FrozenRows, Measured, cut, measure, whole
from longmlm.folders import PARTIAL, write_json
from longmlm.model.batches import MlmBatch, StepBatches
from longmlm.model.cost import Cost
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.processes import ignore_stop_signals
from longmlm.runtime import Stop, peak_memory_bytes
from longmlm.training import checkpoint, tracking
from longmlm.training.config import RecipeConfig, RuntimeConfig
from longmlm.training.schedule import learning_rate
from longmlm.training.state import TrainState


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run works with; `objective` is wrapped for data parallelism, `block` the base model's length."""

    folder: Path
    accelerator: Accelerator
    objective: nn.Module
    optimizer: torch.optim.Optimizer
    batches: StepBatches
    held_out: FrozenRows
    block: int
    recipe: RecipeConfig
    runtime: RuntimeConfig
    record: checkpoint.RunRecord
    cost: Cost
    peak_flops: float | None
    num_examples: int = 0

    @property
    def inner(self) -> MlmObjective:
        """The objective without its wrapping."""
        return cast(MlmObjective, self.accelerator.unwrap_model(self.objective, keep_fp32_wrapper=True))


@dataclass(frozen=True, slots=True)
class Update:
    """What one update saw, over all processes: mean loss in nats, share of hits, counts, and the rate it used."""

    loss: float
    accuracy: float
    num_tokens: int
    num_selected: int
    gradient_norm: float
    learning_rate: float


def begin(run: Run, resumed_from: Path | None) -> TrainState:
    """Returns the state in the checkpoint, with optimizer and generators put back, or that of a new run.

    A new run has its base model measured first: the accuracy that training must win back.
    """
    state = TrainState()
    if resumed_from is not None:
        state = checkpoint.resumable_state(resumed_from, run.record.depends_on)
        checkpoint.restore(resumed_from, run.optimizer, run.accelerator)
    if run.accelerator.is_main_process:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "settings.toml").write_text(run.record.settings, encoding="utf-8")
        tracking.forget_after(run.folder, -1 if resumed_from is None else state.step)
        for half in (run.folder / "checkpoints").glob(f"*{PARTIAL}"):
            shutil.rmtree(half)
    return state if resumed_from is not None else evaluated(run, replace(state, base_cut=_base_cut(run)))


def _base_cut(run: Run) -> float | None:
    base = run.record.provenance.get("base")
    if base is None:
        return None
    model = load_model(base, run.record.provenance["base_revision"]).model.to(run.accelerator.device)
    view = partial(cut, num_positions=run.block, special=run.held_out.special)
    measured = measure(MlmObjective(model), run.held_out, view, run.block, run.accelerator, "base model")
    return measured.whole.accuracy


def train(run: Run, state: TrainState, stop: Stop) -> TrainState:
    """Returns the state at the last step, or at the step in which the run was asked to stop; it is saved.

    Raises TrainingError before an update that loss or gradient would spoil.
    """
    window: list[tuple[Update, float]] = []
    if _is_enough(run, state):
        if not state.step:
            save(run, state)
        return state
    with _progress(run, state) as bar:
        started = time.monotonic()
        for batches in _loader(run, state.step):
            update = one_update(run, batches, state)
            seconds = time.monotonic() - started
            state = state.after_update(run.batches.recipe.rows_per_step, update.num_tokens, seconds)
            window.append((update, seconds))
            is_last, stopping = state.step == run.recipe.num_steps, _anyone(stop, run.accelerator)
            if is_last or stopping or state.step % run.runtime.log_every_steps == 0:
                _log(run, state, window, bar)
                window = []
            if is_last or state.step % run.runtime.evaluate_every_steps == 0:
                state = evaluated(run, state)
            ends = stopping or _is_enough(run, state)
            if is_last or ends or state.step % run.runtime.save_every_steps == 0:
                save(run, state)
            if ends:
                break
            started = time.monotonic()
    return state


def one_update(run: Run, batches: Sequence[MlmBatch], state: TrainState) -> Update:
    """Makes one optimizer update on this process' share of a global batch.

    The loss is the cross-entropy summed over the selected tokens and divided by their number in the whole global
    batch, so its gradient is that of one big batch; data parallelism averages, hence the factor.
    """
    accelerator, here = run.accelerator, run.accelerator.device
    num_mine = torch.tensor([sum(len(batch.labels) for batch in batches), _num_tokens(batches)], dtype=torch.float64)
    num_selected, num_tokens = accelerator.reduce(num_mine.to(here), "sum").tolist()
    if not num_selected:
        raise TrainingError(
            f"the rows of step {state.step + 1} hold special tokens only, none to select: the tokenizer does not know "
            "the text's script"
        )
    rate = learning_rate(state.step, run.recipe)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    sums = torch.zeros(2, dtype=torch.float64, device=here)
    for place, batch in enumerate(batches):
        with accelerator.no_sync(run.objective) if place + 1 < len(batches) else nullcontext():
            told = run.objective(batch.to(here))
            loss = told.losses.sum()
            accelerator.backward(loss * (accelerator.num_processes / num_selected))
        sums += torch.stack([loss.detach().double(), told.hits.sum().double()])
    norm = float(nn.utils.clip_grad_norm_(run.objective.parameters(), run.recipe.max_gradient_norm))
    loss_sum, hits = accelerator.reduce(sums, "sum").tolist()
    if not (math.isfinite(loss_sum) and math.isfinite(norm)):
        _refuse(run, batches, state)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    return Update(loss_sum / num_selected, 100 * hits / num_selected, int(num_tokens), int(num_selected), norm, rate)


def evaluated(run: Run, state: TrainState) -> TrainState:
    """Returns the state with the held-out accuracy at full length, which is written down."""
    measured = measure(run.inner, run.held_out, whole, run.block, run.accelerator, "evaluate")
    state = state.after_evaluation(measured.whole.accuracy)
    line = evaluation_line(state, measured) | _examples(run)
    if run.accelerator.is_main_process:
        tracking.append(run.folder, line)
    return state


def _examples(run: Run) -> dict[str, object]:
    """Returns what the model fills in near the end of some rows; every process asks it, as a shared model wants."""
    if not run.num_examples:
        return {}
    model, here = run.inner.model, run.accelerator.device
    with run.accelerator.autocast():
        found = filled_masks(model, run.record.tokenizer, run.held_out, run.num_examples, here)
    return {"examples": [asdict(example) for example in found]}


def evaluation_line(state: TrainState, measured: Measured) -> dict[str, object]:
    """Returns an evaluation as a line of metrics."""
    return {
        "step": state.step,
        "tokens": state.tokens,
        "held_out": asdict(measured),
        "base_cut": state.base_cut,
        "recovered_at_step": state.recovered_at_step,
        "recovered_at_tokens": state.recovered_at_tokens,
    }


def save(run: Run, state: TrainState) -> None:
    """Writes the checkpoint of this step, then removes old ones."""
    parts = (run.inner.model, run.optimizer, run.record, run.accelerator)
    saved = checkpoint.save(run.folder, state, *parts)
    if run.accelerator.is_main_process:
        checkpoint.prune(run.folder, saved, run.runtime.checkpoints_kept)


def conclude(run: Run, state: TrainState) -> str:
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


def _loader(run: Run, first_step: int) -> Iterator[tuple[MlmBatch, ...]]:
    """Yields the micro-batches of each step from `first_step` on; an own generator leaves dropout's alone."""
    workers = run.runtime.num_loader_workers
    loader: DataLoader[tuple[MlmBatch, ...]] = DataLoader(
        run.batches,
        batch_size=None,
        sampler=range(first_step, run.recipe.num_steps),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
        worker_init_fn=ignore_stop_signals,
    )
    return iter(loader)


def _is_enough(run: Run, state: TrainState) -> bool:
    return run.runtime.stop_when_recovered and state.recovered_at_step is not None


def _num_tokens(batches: Sequence[MlmBatch]) -> int:
    return sum(
        batch.input_ids.numel() if batch.attention_mask is None else int(batch.attention_mask.sum())
        for batch in batches
    )


def _anyone(stop: Stop, accelerator: Accelerator) -> bool:
    flag = torch.tensor(int(bool(stop)), device=accelerator.device)
    return bool(accelerator.reduce(flag, "sum").item())


def _refuse(run: Run, batches: Sequence[MlmBatch], state: TrainState) -> None:
    name = f"non-finite-step-{state.step + 1:08d}-process-{run.accelerator.process_index}.json"
    row_ids = [row_id for batch in batches for row_id in batch.row_ids]
    write_json(run.folder / name, {"step": state.step + 1, "row_ids": row_ids})
    last = checkpoint.newest_sound(run.folder).folder
    raise TrainingError(
        f"loss or gradient is not finite in step {state.step + 1}; no update was made, its rows are in "
        f"{run.folder / name}, the last checkpoint is {last.name if last else 'none'}: lower the learning rate or look "
        "at these rows"
    )


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
