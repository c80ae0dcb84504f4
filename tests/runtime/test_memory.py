"""What is returned to the system, and batches of an evaluation that are halved when memory runs out."""

import platform
from collections.abc import Sequence

import psutil
import pytest
import torch

from longmlm.errors import TrainingError
from longmlm.runtime.memory import BatchSize, results_of_batches, return_freed_memory

ITEMS = list(range(11))


def limited(most: int, tried: list[int], error: RuntimeError | None = None):
    """Returns a prediction, the sum of the items, which runs out of memory with more items than this."""

    def predict(batch: Sequence[int]) -> int:
        tried.append(len(batch))
        if len(batch) > most:
            raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return sum(batch)

    return predict


def test_batches_that_do_not_fit_are_halved_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    tried, announced, size = [], [], BatchSize(8)
    results = list(results_of_batches(limited(3, tried), ITEMS, size, lambda: announced.append(len(tried)), True))
    assert tried == [8, 4, 2, 2, 2, 2, 2, 1]
    assert [end for end, _ in results] == [2, 4, 6, 8, 10, 11]
    assert sum(value for _, value in results) == sum(ITEMS)
    assert announced == [0] * 8 + [6] * 2 + [7], "once for each item, before its first forward pass"
    lines = [line[20:] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "out of memory in an evaluation: it goes on with 4 rows at a time",
        "out of memory in an evaluation: it goes on with 2 rows at a time",
    ]
    list(results_of_batches(limited(3, tried), ITEMS, size, lambda: None, True))
    assert max(tried[8:]) == 2, "the next part of the evaluation does not try the old size again"


def test_batches_that_fit_are_left_as_they_are() -> None:
    tried = []
    assert len(list(results_of_batches(limited(99, tried), ITEMS, BatchSize(4), lambda: None, True))) == 3
    assert tried == [4, 4, 3]


def test_an_item_that_does_not_fit_and_other_errors_are_raised() -> None:
    with pytest.raises(TrainingError, match="out of memory in an evaluation with one row at a time: free some memory"):
        list(results_of_batches(limited(0, []), ITEMS, BatchSize(4), lambda: None, True))
    with pytest.raises(RuntimeError, match="shape"):
        list(results_of_batches(limited(3, [], RuntimeError("shape")), ITEMS, BatchSize(4), lambda: None, True))


def test_a_batch_is_not_repeated_where_forward_passes_communicate() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        list(results_of_batches(limited(3, []), ITEMS, BatchSize(4), lambda: None, False))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no malloc_trim")
def test_freed_memory_between_blocks_that_are_still_used_is_returned_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return_freed_memory(1)  # which notes what the process holds
    blocks = [bytearray(b"x" * 50_000) for _ in range(4_000)]
    kept = blocks[::100]
    del blocks
    before = psutil.Process().memory_info().rss
    return_freed_memory(kept_bytes=1 << 40)
    assert psutil.Process().memory_info().rss > before - 10_000_000
    return_freed_memory(kept_bytes=10_000_000)
    assert psutil.Process().memory_info().rss < before - 100_000_000
    assert all(block == b"x" * 50_000 for block in kept)
