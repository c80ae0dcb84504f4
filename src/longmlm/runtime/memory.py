"""Memory: what is returned to the system, and smaller batches of an evaluation when it runs out."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from longmlm.errors import TrainingError, counted
from longmlm.progress import dated_line

MESSAGES = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")  # of RuntimeErrors
KEPT_BYTES = 250_000_000  # of freed blocks that glibc may keep from step to step

_held_bytes = [0]  # by the process after freed memory was returned

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether a GPU or the CPU ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in MESSAGES)


def return_freed_memory(kept_bytes: int = 0) -> None:
    """Returns freed memory of the CPU to the system: after batches of many lengths, glibc keeps more and more of it.

    Since that costs time, nothing is done while the process holds at most `kept_bytes` more than after the last return;
    nor where a GPU computes.
    """
    if torch.cuda.is_available() or (process := psutil.Process()).memory_info().rss < _held_bytes[0] + kept_bytes:
        return
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    _held_bytes[0] = process.memory_info().rss if kept_bytes else 0


@dataclass(slots=True)
class BatchSize:
    """The number of rows of an evaluation's batches; it is halved where memory runs out."""

    rows: int


def results_of_batches(
    predict: Callable[[Sequence[Item]], Result],
    items: Sequence[Item],
    size: BatchSize,
    before_item: Callable[[], None],
    may_repeat: bool,
) -> Iterator[tuple[int, Result]]:
    """Yields the number of items so far and the result for each batch of items.

    If memory runs out, `size` is halved, and the batch is repeated in parts. Calls `before_item` once for each item,
    before its forward pass. Without `may_repeat`, where ranks wait for each other in a pass, the error is raised
    instead. Raises TrainingError if not even one item fits.
    """
    end, num_announced = 0, 0
    while end < len(items):
        batch = items[end : end + size.rows]
        for _ in range(end + len(batch) - num_announced):
            before_item()
        num_announced = max(num_announced, end + len(batch))
        try:
            result = predict(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error) or not may_repeat:
                raise
            if len(batch) == 1:
                raise TrainingError(
                    "out of memory in an evaluation with one row at a time: free some memory, or read shorter rows or "
                    "documents"
                ) from error
            size.rows = len(batch) // 2
        else:
            end += len(batch)
            yield end, result
            continue
        dated_line(f"out of memory in an evaluation: it goes on with {counted(size.rows, 'row')} at a time")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # outside the except block: the error keeps the activations alive
