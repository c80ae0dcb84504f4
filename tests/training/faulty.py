"""Training with a fault in one process, as a script for the launcher: faulty.py FAULT RANK STEP FILE.toml."""

import os
import signal
import sys
import time

import torch

from longmlm.training import loop
from longmlm.training.config import PretrainConfig
from pipelines import pretrain


def main() -> None:
    """Lets the fault happen in the process RANK at the beginning of the update after STEP."""
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = [sys.argv[0], *sys.argv[4:]]
    update = loop.one_update

    def faulty(run, batches, state):
        if run.accelerator.process_index == rank and state.step == step:
            if fault == "hang":
                time.sleep(600)
            if fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "nan":
                with torch.no_grad():
                    next(run.inner.model.parameters())[5:].fill_(float("nan"))
            if fault == "nan-gradient":
                next(run.inner.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
            if fault == "die" and not (died := run.folder / "died").exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return update(run, batches, state)

    loop.one_update = faulty
    pretrain.run_stage(PretrainConfig, pretrain.pretrain)


if __name__ == "__main__":
    main()
