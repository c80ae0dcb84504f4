"""Training with a fault in one process, as a script for the launcher: faulty.py FAULT RANK STEP FILE.toml.

The rank -1 stands for every process.
"""

import os
import resource
import signal
import sys
import time

import torch

from longmlm import cli
from longmlm.training import checkpoint, loop
from longmlm.training import saver as saving

LARGEST_FILE = 16_384  # bytes: lines and states of generators fit, weights do not


def main() -> None:
    """Lets the fault happen in the process RANK at the beginning of the update after STEP."""
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = [sys.argv[0], *sys.argv[4:]]
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and os.environ["RANK"] == "0":
        time.sleep(3)  # the others find in the launcher's store what the process 0 that ended had left there
    update = loop.one_update

    def faulty(run, batches, state):
        if rank in (-1, run.accelerator.process_index) and state.step == step:
            happen(fault, run)
        return update(run, batches, state)

    loop.one_update = faulty
    cli.main("pretrain")


def until_saved(run) -> None:
    """Waits for the first checkpoint, which a thread of this process writes."""
    while not checkpoint.folders(run.folder):
        time.sleep(0.05)


def happen(fault: str, run) -> None:
    match fault:
        case "hang":
            time.sleep(600)
        case "hang-save":
            saving.take = lambda _: time.sleep(600)
        case "stop":
            until_saved(run)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        case "die" if not (run.folder / "died").exists():
            (run.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "full":
            until_saved(run)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        case "nan":
            with torch.no_grad():
                next(run.inner.model.parameters())[5:].fill_(float("nan"))
        case "nan-gradient":
            next(run.inner.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))


if __name__ == "__main__":
    main()
