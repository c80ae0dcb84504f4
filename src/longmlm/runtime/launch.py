"""Launch: the Accelerator of the processes that were started, checked against what was asked for."""

import gc
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from accelerate import Accelerator
from accelerate.commands.config import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from torch.distributed import DistError, TCPStore
from transformers.integrations import unset_hf_deepspeed_config

from longmlm.errors import TrainingError
from longmlm.processes import end_with_parent
from longmlm.runtime.memory import _local_world_size

LAUNCHERS = ("accelerate", "accelerate-launch", "accelerate.commands.launch")

_store_of_this_start: list[TCPStore] = []

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers imports DeepSpeed to save a model, which else warns


def launch(
    num_processes: int | None = None,
    num_threads: int | None = None,
    hang_seconds: float | None = None,
    deepspeed: DeepSpeedPlugin | None = None,
) -> Accelerator:
    """Returns the Accelerator of this launch; without a GPU `num_threads` are used, or a fair share of the cores.

    Raises TrainingError when the processes that were started do not know of each other, when they are fewer than the
    launch was to start, or not `num_processes`.
    """
    patience = None if hang_seconds is None else timedelta(seconds=2 * hang_seconds)  # end_when_hanging comes first
    _new_rendezvous()
    is_cpu = not torch.cuda.is_available()
    group = InitProcessGroupKwargs(backend="gloo" if is_cpu and deepspeed else None, timeout=patience)
    accelerator = Accelerator(
        mixed_precision="no",  # MlmObjective computes in what the recipe says
        cpu=is_cpu and deepspeed is None,
        deepspeed_plugin=deepspeed,
        kwargs_handlers=[group],
    )
    if deepspeed is not None:
        unset_hf_deepspeed_config()  # models are loaded whole and shared out later
    if "ACCELERATE_MIXED_PRECISION" in os.environ:
        end_with_parent(signal.SIGTERM)  # `accelerate launch` with one process does not pass a signal on
    started, wanted = int(os.environ.get("WORLD_SIZE", "1")), _requested_processes()
    if accelerator.num_processes != started:
        raise TrainingError(
            f"{started} processes were started, but each believes that it is one of {accelerator.num_processes}: "
            "start them with `accelerate launch --config_file configs/accelerate/...yaml`"
        )
    if accelerator.num_processes < wanted:
        raise TrainingError(
            f"accelerate launch was to start {wanted} processes and started {accelerator.num_processes} alone: choose "
            "a config of configs/accelerate, its distributed_type decides"
        )
    if num_processes is not None and accelerator.num_processes != num_processes:
        raise TrainingError(
            f"runtime.num_processes is {num_processes}, but {accelerator.num_processes} were started: "
            "choose the Accelerate config that starts as many"
        )
    if is_cpu:
        torch.set_num_threads(num_threads or _fair_share_of_cores())
    return accelerator


def _new_rendezvous(seconds: float = 600) -> None:
    """Leads the processes of this start to a store that process 0 opens; raises TrainingError when it does not.

    The launcher's store outlives a restart, and still holds the addresses of the processes that ended.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    host, deadline = os.environ["MASTER_ADDR"], time.monotonic() + seconds
    launchers = TCPStore(host, int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=seconds))
    own = None
    if os.environ["RANK"] == "0":
        own = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        launchers.set("longmlm/port", str(own.port))
    while own is None:
        with suppress(DistError):  # nobody listens at the port of a process 0 that ended
            own = TCPStore(host, int(launchers.get("longmlm/port")), timeout=timedelta(seconds=2))
        if time.monotonic() > deadline:
            raise TrainingError(f"process 0 did not start in {seconds:.0f} s: give the same command again")
    os.environ["MASTER_PORT"] = str(own.port)
    _store_of_this_start[:] = [own]


def _requested_processes() -> int:
    """Returns how many processes the `accelerate launch` that started this one was to start, 1 if there was none.

    With some settings it starts one where several are asked for, and says nothing.
    """
    if "WORLD_SIZE" in os.environ:
        return 1
    try:
        command = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return 1
    begins = [place + 1 for place, word in enumerate(command) if Path(word).name in LAUNCHERS]
    if not begins:
        return 1
    arguments = command[begins[0] :]
    asked, _ = launch_command_parser().parse_known_args(arguments[arguments[:1] == ["launch"] :])
    file = Path(asked.config_file or default_config_file)
    config = load_config_from_file(str(file)) if file.is_file() else None
    return asked.num_processes or getattr(config, "num_processes", 1)


def _fair_share_of_cores() -> int:
    """Returns the cores for each process of this machine; Accelerate's launcher leaves one, whatever there is."""
    return max(1, len(os.sched_getaffinity(0)) // _local_world_size())


def seed_process(seed: int, process_index: int) -> None:
    """Seeds dropout, differently in each process; nothing else in a run draws from the global generators."""
    torch.manual_seed(seed + process_index)


def shut_down(accelerator: Accelerator) -> None:
    """Ends the process group in an order that gloo survives: wait for all, free what holds buckets, destroy."""
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()
