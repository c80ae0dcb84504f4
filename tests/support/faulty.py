"""Trainings, each with a fault on one rank, as a script for the launcher: faulty.py FAULT RANK STEP FILE.toml ...

Several trainings, of four words each, run one after another in the same processes. What a rank prints then goes to
output-RANK.txt beside FILE.toml, its exit code and number of threads to ended-RANK.json.

The fault happens at the beginning of the update after STEP; `none` is no fault. The rank -1 stands for every rank. For
`memory`, STEP is the number of bytes that are free on RANK; for `rows`, RANK runs out of memory in a forward pass of
more than STEP rows, for `rows-later` not in the first eight. `communicate` is no fault either: events-RANK.json then
lists, for each micro-batch, whether it is the last of its step, and its events: the name of a parameter whose gradient
is complete, or SENT when DDP sends a bucket of gradients.
"""

import gc
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from longmlm import cli, processes
from longmlm.evaluation import run_evaluation
from longmlm.model.mlm import MlmObjective
from longmlm.runtime import launch
from longmlm.stages import pretrain
from longmlm.training import checkpoint, loop, micro_batch
from longmlm.training.backend import PlainBackend
from longmlm.training.run_folder import list_checkpoints

LARGEST_FILE = 16_384  # bytes: metrics and generator states fit, weights do not
SENT = "sent"
SetAttribute = Callable[..., None]


def main() -> None:
    words = sys.argv[1:]
    trainings = [words[start : start + 4] for start in range(0, len(words), 4)]
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and os.environ["RANK"] == "0":
        time.sleep(3)  # the other ranks find in the launcher's store what the previous rank 0 left there
    if len(trainings) == 1:
        train(*trainings[0], setattr)
        return
    for number, words in enumerate(trainings):
        with pytest.MonkeyPatch.context() as patch:
            if number:
                patch.setattr(launch, "_join_new_store", lambda: None)
            if number < len(trainings) - 1:
                patch.setattr(pretrain, "shut_down", keep_group)
            train_and_note(words, patch.setattr)


def train_and_note(words: list[str], set_attribute: SetAttribute) -> None:
    """Trains, and writes what this rank printed, its exit code and its number of threads."""
    folder, rank, code = Path(words[-1]).parent, os.environ["RANK"], 0
    set_attribute(processes, "FIRST_PROCESS_SECONDS", 0.0)
    with (folder / f"output-{rank}.txt").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        try:
            train(*words, set_attribute)
        except SystemExit as stop:
            code = stop.code
    limit_files(most_bytes())
    AcceleratorState._reset_state()
    ended = {"code": code, "num_threads": torch.get_num_threads()}
    (folder / f"ended-{rank}.json").write_text(json.dumps(ended))


def keep_group(accelerator) -> None:
    """Takes the place of `shut_down` where another training follows: the processes stay connected."""
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    gc.collect()


def train(fault: str, rank: str, step: str, file: str, set_attribute: SetAttribute) -> None:
    """Makes the fault happen on the rank at the beginning of the update after the step."""
    sys.argv = [sys.argv[0], file]
    if fault == "communicate":
        record_communication(set_attribute, Path(file).with_name(f"events-{os.environ['RANK']}.json"))
    if os.environ["RANK"] == rank and fault == "memory":
        set_attribute(micro_batch, "free_memory_bytes", lambda: int(step))
    if os.environ["RANK"] == rank and fault.startswith("rows"):
        error = torch.OutOfMemoryError("CUDA out of memory.")
        limit_rows(set_attribute, int(step), error, 8 if fault == "rows-later" else 0)
    update = loop.one_update

    def faulty(task, run, batches, state):
        if rank in ("-1", os.environ["RANK"]) and state.step == int(step):
            happen(fault, run, set_attribute)
        return update(task, run, batches, state)

    set_attribute(loop, "one_update", faulty)
    cli.main("pretrain")


def limit_rows(set_attribute: SetAttribute, num_rows: int, error: RuntimeError, num_passes: int = 0) -> None:
    """Makes forward passes in training raise `error`, once they are computed, if they have more rows than this.

    The first `num_passes` do not.
    """
    forward, passes = MlmObjective.forward, itertools.count()

    def limited(objective, batch):
        sums = forward(objective, batch)
        if next(passes) >= num_passes and len(batch.row_ids) > num_rows:
            raise error
        return sums

    set_attribute(MlmObjective, "forward", limited)


def record_communication(set_attribute: SetAttribute, file: Path) -> None:
    """Writes the events of all micro-batches so far to the file whenever a step ends."""
    micro_batches: list[tuple[bool, list[str]]] = []
    wrap, accumulation, step = PlainBackend.wrap.__func__, PlainBackend.accumulation, PlainBackend.step

    def observed(cls, *inputs):
        backend = wrap(cls, *inputs)

        def send(group, bucket):
            micro_batches[-1][1].append(SENT)
            return allreduce_hook(group, bucket)

        backend.wrapped.register_comm_hook(None, send)
        for name, parameter in backend.objective.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: micro_batches[-1][1].append(name))
        return backend

    def counted(backend, is_last):
        micro_batches.append((is_last, []))
        return accumulation(backend, is_last)

    def noted(backend, rate):
        file.write_text(json.dumps(micro_batches))
        return step(backend, rate)

    set_attribute(PlainBackend, "wrap", classmethod(observed))
    set_attribute(PlainBackend, "accumulation", counted)
    set_attribute(PlainBackend, "step", noted)


def most_bytes() -> int:
    """Returns how large a file of this process may be made."""
    return resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def limit_files(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most_bytes()))


def wait_for_a_checkpoint(run) -> None:
    """Waits for the first checkpoint, which a thread of this process writes."""
    while not list_checkpoints(run.folder):
        time.sleep(0.05)


def terminate_in_next_evaluation(set_attribute: SetAttribute) -> None:
    """Sends SIGTERM to this process when the evaluation that follows has shown a few rows to the model."""
    whole, rows = run_evaluation.whole, []

    def terminating(row):
        rows.append(row)
        if len(rows) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(row)

    set_attribute(run_evaluation, "whole", terminating)


def happen(fault: str, run, set_attribute: SetAttribute = setattr) -> None:
    model = run.backend.objective.model
    match fault:
        case "hang":
            time.sleep(600)
        case "hang-save":
            checkpoint.take_snapshot = lambda *_: time.sleep(600)
        case "stop":
            wait_for_a_checkpoint(run)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        case "terminate-in-evaluation":
            terminate_in_next_evaluation(set_attribute)
        case "die" if not (run.folder / "died").exists():
            (run.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "full":
            wait_for_a_checkpoint(run)
            limit_files(LARGEST_FILE)
        case "nan":
            with torch.no_grad():
                next(model.parameters())[5:].fill_(float("nan"))
        case "nan-gradient":
            gradient_of = next(model.parameters())
            once = gradient_of.register_hook(lambda gradient: once.remove() or gradient * float("nan"))


if __name__ == "__main__":
    main()
