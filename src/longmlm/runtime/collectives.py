"""Collective operations across ranks: agreement, broadcast, work that one rank does for the others."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from longmlm.errors import TrainingError

Value = TypeVar("Value")

POLL_SECONDS = 0.1


def any_rank(accelerator: Accelerator, flag: bool) -> bool:
    """Returns on every rank whether the flag is set on any."""
    return each_on_any_rank(accelerator, flag)[0]


def each_on_any_rank(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Returns on every rank, for each flag, whether it is set on any; a single process does not wait for its device."""
    if accelerator.num_processes == 1:
        return list(flags)
    counts = accelerator.reduce(torch.tensor(flags, dtype=torch.int32, device=accelerator.device), "sum")
    return [count > 0 for count in counts.tolist()]


def min_over_ranks(accelerator: Accelerator, value: int) -> int:
    """Returns the smallest value of any rank, on every rank."""
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).min())


def check_same_on_all_ranks(accelerator: Accelerator, content: str | bytes, what: str) -> None:
    """Raises TrainingError on every rank when `content` differs on one: their machines do not share a disk."""
    (first,) = broadcast_object_list([content])
    if any_rank(accelerator, content != first):
        raise TrainingError(f"a process sees {what}: it must be on a disk that all machines share")


def broadcast_from_main(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """Returns on every rank what `work` returns in the main process."""
    result = _while_others_wait(accelerator, work, accelerator.is_main_process)
    return cast(Value, broadcast_object_list([result])[0])


def local_main_first(accelerator: Accelerator, work: Callable[[], object]) -> None:
    """Does the work in the first process of each machine; the others wait."""
    _while_others_wait(accelerator, work, accelerator.is_local_main_process)


def _while_others_wait(accelerator: Accelerator, work: Callable[[], Value], is_worker: bool) -> Value | None:
    """Returns what `work` returns in the workers; the others wait as long as it takes, and all fail when one does."""
    if accelerator.num_processes == 1:
        return work()
    task: Future[Value] | None = None
    if is_worker:
        task = Future()
        Thread(target=_complete, args=(task, work), daemon=True).start()  # a stop signal does not wait for a daemon
    while any_rank(accelerator, task is not None and not task.done()):
        time.sleep(POLL_SECONDS)
    error = task.exception() if task else None
    if any_rank(accelerator, error is not None):
        raise error or TrainingError("another process failed: its error says why")
    return task.result() if task else None


def _complete(task: "Future[Value]", work: Callable[[], Value]) -> None:
    try:
        task.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
        task.set_exception(error)
