"""Training that records when gradients are computed and sent, as a script for the launcher: communicating.py FILE.toml.

Each rank writes events-RANK.json into the folder of the settings: for each micro-batch, whether it is the last of its
step, and a list of events. An event is the name of a parameter whose gradient is complete, or SENT when DDP sends a
bucket of gradients.
"""

import json
import os
import sys
from pathlib import Path

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from longmlm import cli
from longmlm.training.backend import PlainBackend

SENT = "sent"


def main() -> None:
    """Trains, and writes the events of all micro-batches."""
    micro_batches: list[tuple[bool, list[str]]] = []
    wrap, accumulation = PlainBackend.wrap.__func__, PlainBackend.accumulation

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

    PlainBackend.wrap = classmethod(observed)
    PlainBackend.accumulation = counted
    cli.main("pretrain")
    Path(sys.argv[1]).with_name(f"events-{os.environ['RANK']}.json").write_text(json.dumps(micro_batches))


if __name__ == "__main__":
    main()
