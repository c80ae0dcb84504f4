"""Training with a fault on one rank, as a script for the launcher: faulty.py FAULT RANK STEP FILE.toml.

The rank -1 stands for every rank. For the fault `memory`, STEP is the number of bytes that are free on RANK; for
`rows`, RANK runs out of memory in a forward pass of more than STEP rows, for `rows-later` not in the first eight.
"""

import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

import torch

from longmlm import cli
from longmlm.evaluation import run_evaluation
from longmlm.model.mlm import MlmObjective
from longmlm.training import checkpoint, loop, micro_batch
from longmlm.training.run_folder import list_checkpoints

LARGEST_FILE = 16_384  # bytes: metrics and generator states fit, weights do not


def main() -> None:
    """Makes the fault happen on RANK at the beginning of the update after STEP."""
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = [sys.argv[0], *sys.argv[4:]]
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and os.environ["RANK"] == "0":
        time.sleep(3)  # the other ranks find in the launcher's store what the previous rank 0 left there
    if fault == "memory" and os.environ["RANK"] == str(rank):
        micro_batch.free_memory_bytes = lambda: step
    if fault in ("rows", "rows-later") and os.environ["RANK"] == str(rank):
        limit_rows(setattr, step, torch.OutOfMemoryError("CUDA out of memory."), 8 if fault == "rows-later" else 0)
    update = loop.one_update

    def faulty(task, run, batches, state):
        if rank in (-1, run.accelerator.process_index) and state.step == step:
            happen(fault, run)
        return update(task, run, batches, state)

    loop.one_update = faulty
    cli.main("pretrain")


def limit_rows(set_attribute: Callable[..., None], num_rows: int, error: RuntimeError, num_passes: int = 0) -> None:
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


def wait_for_a_checkpoint(run) -> None:
    """Waits for the first checkpoint, which a thread of this process writes."""
    while not list_checkpoints(run.folder):
        time.sleep(0.05)


def terminate_in_next_evaluation() -> None:
    """Sends SIGTERM to this process when the evaluation that follows has shown a few rows to the model."""
    whole, rows = run_evaluation.whole, []

    def terminating(row):
        rows.append(row)
        if len(rows) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(row)

    run_evaluation.whole = terminating


def happen(fault: str, run) -> None:
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
            terminate_in_next_evaluation()
        case "die" if not (run.folder / "died").exists():
            (run.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "full":
            wait_for_a_checkpoint(run)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        case "nan":
            with torch.no_grad():
                next(model.parameters())[5:].fill_(float("nan"))
        case "nan-gradient":
            gradient_of = next(model.parameters())
            once = gradient_of.register_hook(lambda gradient: once.remove() or gradient * float("nan"))


if __name__ == "__main__":
    main()
