"""Launch: makes the Accelerator, checks how many processes were started, and shares cores and memory among them."""

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from threading import Timer

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from torch import Tensor
from torch.distributed import DistError, TCPStore
from transformers.integrations import unset_hf_deepspeed_config

from longmlm.errors import TrainingError, counted
from longmlm.escaping import single_line
from longmlm.processes import (
    AGENT_STORE,
    LAUNCHED,
    check_launched,
    check_num_processes,
    end_with_parent,
    is_launched,
    num_started_processes,
)
from longmlm.runtime.launcher import check_all_started, check_launch_settings, exported_threads, has_launcher
from longmlm.runtime.signals import killed_by_signals
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.pretrain import ComputePrecision, Precision
from longmlm.settings.shipped import LAUNCHES

NOTE_SECONDS = 30.0  # processes that a launcher starts connect within these seconds, even from a slow disk
CONNECT_SECONDS = 600.0

_open_stores: list[TCPStore] = []  # a store closes when nothing refers to it


def launch(
    precision: ComputePrecision = "no",
    num_processes: int | None = None,
    num_threads: int | None = None,
    hang_seconds: float | None = None,
    deepspeed: DeepSpeedPlugin | None = None,
) -> Accelerator:
    """Returns the Accelerator of this launch.

    The process gets `num_threads` threads. By default, without a GPU, it gets the OMP_NUM_THREADS that the user
    exported, or else an equal share of the cores.

    Raises TrainingError when the launch sets what a run in this precision would not follow, when the processes are not
    connected, when the launcher started fewer than requested, or when there are not `num_processes`.
    """
    check_launched()
    check_all_started()
    check_launch_settings(precision)
    is_cpu = not torch.cuda.is_available()
    if not is_cpu and _local_world_size() > (num_gpus := torch.cuda.device_count()):
        raise TrainingError(
            f"{_local_world_size()} processes were started on this machine, which has {counted(num_gpus, 'GPU')}: "
            f"start one per GPU, with --num_processes {num_gpus}"
        )
    timeout = None if hang_seconds is None else timedelta(seconds=2 * hang_seconds)  # the watchdog comes first
    group = InitProcessGroupKwargs(backend="gloo" if is_cpu and deepspeed else None, timeout=timeout)
    with _connecting():
        _join_new_store()
        accelerator = Accelerator(
            mixed_precision="no",  # the objective computes in the recipe's precision
            cpu=is_cpu and deepspeed is None,
            deepspeed_plugin=deepspeed,
            kwargs_handlers=[group],
        )
    if deepspeed is not None:
        unset_hf_deepspeed_config()  # models are loaded in full and partitioned later
    if has_launcher():
        end_with_parent(signal.SIGTERM)  # `accelerate launch` with one process does not pass a signal on
    _check_num_processes(accelerator.num_processes, num_processes)
    if is_cpu or num_threads:
        torch.set_num_threads(num_threads or exported_threads() or _fair_share_of_cores())
    return accelerator


@contextmanager
def _connecting() -> Iterator[None]:
    """Says after a while what this process waits for in the block, where the processes of a launch connect.

    It ends if they do not, and at once by a stop signal, whose handler would have to wait for them. Raises
    TrainingError if Accelerate or the network refuses.
    """
    given = ", ".join(f"{name} = {os.environ[name]}" for name in LAUNCHED if name in os.environ)
    is_alone = not is_launched() and num_started_processes() == 1
    note = (
        f"note: waiting for the launch's other processes ({given}): if no launcher started this one, unset WORLD_SIZE"
    )
    timer = Timer(NOTE_SECONDS, print, [note], {"file": sys.stderr, "flush": True})
    waiting = nullcontext() if is_alone else watchdog(CONNECT_SECONDS, int(os.environ.get("RANK", "0")))
    with waiting, nullcontext() if is_alone else killed_by_signals():
        try:
            if not is_alone:
                timer.start()
            yield
        except (DistError, ValueError) as error:
            raise TrainingError(f"Accelerate cannot start: {single_line(str(error))} ({given})") from error
        finally:
            timer.cancel()


def _check_num_processes(actual: int, required: int | None) -> None:
    """Raises TrainingError when `actual` is not what the launcher started, or what the settings require."""
    started = num_started_processes()
    if actual != started:
        raise TrainingError(
            f"{started} processes were started, but each of them counts {actual}: start them with "
            f"`accelerate launch --config_file FILE`, with a file of {LAUNCHES}"
        )
    check_num_processes(actual, required)


def _join_new_store(seconds: float = CONNECT_SECONDS) -> None:
    """Points the processes to a new store that process 0 opens; raises TrainingError when it does not.

    The launcher's store survives a restart, and still holds the addresses of the processes that died.
    """
    if os.environ.get(AGENT_STORE) != str(True):
        return
    host, deadline = os.environ["MASTER_ADDR"], time.monotonic() + seconds
    launcher_store = TCPStore(host, int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=seconds))
    own = None
    if os.environ["RANK"] == "0":
        own = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        launcher_store.set("longmlm/port", str(own.port))
    while own is None:
        with suppress(DistError):  # nobody listens at the port of a process 0 that died
            own = TCPStore(host, int(launcher_store.get("longmlm/port")), timeout=timedelta(seconds=2))
        if time.monotonic() > deadline:
            raise TrainingError(f"process 0 did not start in {seconds:.0f} s: run the same command again")
    os.environ["MASTER_PORT"] = str(own.port)
    _open_stores[:] = [own]


def _local_world_size() -> int:
    """Returns the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_launched() else 1


def _fair_share_of_cores() -> int:
    """Returns how many cores each process of this machine gets; Accelerate's launcher would give each only one."""
    return max(1, len(os.sched_getaffinity(0)) // _local_world_size())


def free_memory_bytes() -> int:
    """Returns how much this process can still allocate: on its GPU, or of its share of the machine's free memory."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available // _local_world_size()


def peak_memory_bytes() -> int:
    """Returns the most memory this process has held: on the GPU where there is one, resident otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def seed_process(seed: int, process_index: int) -> None:
    """Seeds dropout, differently on each rank; nothing else in a run draws from the global generators."""
    torch.manual_seed(seed + process_index)


def generator_states() -> dict[str, Tensor]:
    """Returns the states of the generators that dropout draws from, of the CPU and of the GPU if there is one."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: Mapping[str, Tensor]) -> None:
    """Restores what `generator_states` returned, perhaps on another machine."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def shut_down(accelerator: Accelerator) -> None:
    """Destroys the process group in an order that gloo survives: wait for all, free what holds buckets, destroy."""
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()


def resolved_precision(precision: Precision) -> ComputePrecision:
    """Returns the precision; for `auto`, bf16 if this machine has instructions for it, else no (fp32).

    `auto` is never fp16, which needs loss scaling, skips updates, and does not run under DeepSpeed: a user has to
    choose it.
    """
    if precision != "auto":
        return precision
    return "bf16" if has_bf16() else "no"


def supported_precision(precision: ComputePrecision) -> ComputePrecision:
    """Returns the precision if this machine computes in it at full speed, else no (fp32)."""
    is_supported = has_bf16() if precision == "bf16" else torch.cuda.is_available()
    return precision if is_supported else "no"


def has_bf16() -> bool:
    """Returns whether the GPU, or the CPU of a machine without one, has instructions for bf16.

    Without them, bf16 is emulated: on a CPU, it is about a hundred times slower than fp32.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
