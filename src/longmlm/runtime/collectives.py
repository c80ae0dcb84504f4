"""Collective operations across ranks: agreement, broadcast, work that one rank does for the others."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from longmlm.errors import TrainingError

Value = TypeVar("Value")

POLL_SECONDS = 0.1


def any_rank(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Returns in every process, for each flag, whether it is set in any."""
    raised = accelerator.reduce(torch.tensor(flags, dtype=torch.int32, device=accelerator.device), "sum")
    return [count > 0 for count in raised.tolist()]


def check_same_on_all_ranks(accelerator: Accelerator, content: str | bytes, what: str) -> None:
    """Raises TrainingError in every process when `content` is not the same in all, since machines share no disk."""
    (first,) = broadcast_object_list([content])
    if any(any_rank(accelerator, content != first)):
        raise TrainingError(f"a process sees {what}: it must lie on a disk that all machines share")


def broadcast_from_main(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """Returns in every process what `work` returns in the main one."""
    told = _while_others_wait(accelerator, work, accelerator.is_main_process)
    return cast(Value, broadcast_object_list([told])[0])


def local_main_first(accelerator: Accelerator, work: Callable[[], object]) -> None:
    """Does the work in the first process of each machine."""
    _while_others_wait(accelerator, work, accelerator.is_local_main_process)


def _while_others_wait(accelerator: Accelerator, work: Callable[[], Value], is_worker: bool) -> Value | None:
    """Returns what `work` returns in the workers; the others wait as long as it takes, and all fail when one does."""
    if accelerator.num_processes == 1:
        return work()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(work) if is_worker else None
        while any(any_rank(accelerator, task is not None and not task.done())):
            time.sleep(POLL_SECONDS)
    error = task.exception() if task else None
    if any(any_rank(accelerator, error is not None)):
        raise error or TrainingError("another process failed: its error says why")
    return task.result() if task else None
