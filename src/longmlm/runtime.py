"""The launch to one Accelerator: processes, device, precision, seeds, signals."""

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import psutil
import torch
from accelerate import Accelerator
from accelerate.commands.config import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs, broadcast_object_list
from torch.distributed import DistError, TCPStore
from transformers.integrations import unset_hf_deepspeed_config

from longmlm.errors import TrainingError
from longmlm.processes import end_with_parent

Told = TypeVar("Told")
POLL_SECONDS = 0.1
LAUNCHERS = ("accelerate", "accelerate-launch", "accelerate.commands.launch")
_latest_beat = [0.0]
_store_of_this_start: list[TCPStore] = []
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers imports DeepSpeed to save a model, which else warns


@dataclass(slots=True)
class Stop:
    """Whether somebody asked the run to end, and how."""

    signal_name: str = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)


def resolved_precision(precision: str) -> str:
    """Returns what `auto` stands for here: bf16 where GPU or CPU compute in it, else no (fp32); others as they are.

    Without instructions for it a CPU takes some hundred times as long in bf16 as in fp32.
    """
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return "bf16" if has_bf16 else "no"


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
    _meet_anew()
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
    started, wanted = int(os.environ.get("WORLD_SIZE", "1")), _processes_wanted()
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


def _meet_anew(seconds: float = 600) -> None:
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


def _processes_wanted() -> int:
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
    return max(1, len(os.sched_getaffinity(0)) // _processes_here())


def _processes_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def seed_process(seed: int, process_index: int) -> None:
    """Seeds dropout, differently in each process; nothing else in a run draws from the global generators."""
    torch.manual_seed(seed + process_index)


def anyone(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Returns in every process, for each flag, whether it is set in any."""
    raised = accelerator.reduce(torch.tensor(flags, dtype=torch.int32, device=accelerator.device), "sum")
    return [count > 0 for count in raised.tolist()]


def refuse_unshared(accelerator: Accelerator, content: str | bytes, what: str) -> None:
    """Raises TrainingError in every process when `content` is not the same in all, since machines share no disk."""
    (first,) = broadcast_object_list([content])
    if any(anyone(accelerator, content != first)):
        raise TrainingError(f"a process sees {what}: it must lie on a disk that all machines share")


def told_by_main(accelerator: Accelerator, work: Callable[[], Told]) -> Told:
    """Returns in every process what `work` returns in the main one."""
    told = _while_others_wait(accelerator, work, accelerator.is_main_process)
    return cast(Told, broadcast_object_list([told])[0])


def once_a_machine(accelerator: Accelerator, work: Callable[[], object]) -> None:
    """Does the work in the first process of each machine."""
    _while_others_wait(accelerator, work, accelerator.is_local_main_process)


def _while_others_wait(accelerator: Accelerator, work: Callable[[], Told], is_worker: bool) -> Told | None:
    """Returns what `work` returns in the workers; the others wait as long as it takes, and all fail when one does."""
    if accelerator.num_processes == 1:
        return work()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(work) if is_worker else None
        while any(anyone(accelerator, task is not None and not task.done())):
            time.sleep(POLL_SECONDS)
    error = task.exception() if task else None
    if any(anyone(accelerator, error is not None)):
        raise error or TrainingError("another process failed: its error says why")
    return task.result() if task else None


def beat() -> None:
    """Says that this process is at work."""
    _latest_beat[0] = time.monotonic()


@contextmanager
def unwatched() -> Iterator[None]:
    """Lets what takes its time, such as writing to a slow disk, not count as hanging."""
    _latest_beat[0] = math.inf
    try:
        yield
    finally:
        beat()


@contextmanager
def end_when_hanging(seconds: float, process_index: int) -> Iterator[None]:
    """Ends this process with exit code 1 and one line when there was no beat for `seconds` while the block runs.

    A process waits for its fellows in each step, so all end that wait for one that hangs; the launcher ends that one.
    """
    over, tick = threading.Event(), min(1.0, seconds / 4)
    beat()

    def watch() -> None:
        seen, ticks = 0.0, 0  # ticks, not the clock: a process that was stopped for a while does not hang
        while not over.wait(tick):
            ticks = ticks + 1 if seen == _latest_beat[0] != math.inf else 0
            seen = _latest_beat[0]
            if ticks * tick > seconds:
                said = (
                    f"error: process {process_index} waited {seconds:.0f} s for its fellows or for a device: one hangs"
                )
                print(f"\n{said}; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Yields a flag that SIGTERM and SIGINT raise instead of ending the process; a second SIGINT interrupts."""
    stop = Stop()

    def note(number: int, _frame: object) -> None:
        if stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal_name = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(accelerator: Accelerator) -> None:
    """Ends the process group in an order that gloo survives: wait for all, free what holds buckets, destroy."""
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()


def free_memory_bytes() -> int:
    """Returns the bytes that this process can still take: of its GPU, or its share of what the machine has left."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available // _processes_here()


def peak_memory_bytes() -> int:
    """Returns the most memory this process has held: on the GPU where there is one, resident otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
