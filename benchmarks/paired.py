"""Compares two ways of doing the same work: run alternately several times; medians, their ratio and peak memory."""

import multiprocessing
import multiprocessing.connection
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

NUM_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Way:
    """A way of doing the work: `prepare` is not timed and returns the timed function, which returns the token count."""

    name: str
    prepare: Callable[[], Callable[[], int]]


def compare(title: str, ours: Way, theirs: Way) -> None:
    """Prints tokens/s of both ways and the ratio of the medians; each round runs each way in a fresh process."""
    speeds: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    memory: dict[str, float] = {}
    for _ in range(NUM_ROUNDS):
        for way in (ours, theirs):
            speed, peak = _in_a_process(way)
            speeds[way.name].append(speed)
            memory[way.name] = max(peak, memory.get(way.name, 0.0))
    print(f"{title}, median of {NUM_ROUNDS}")
    for name, found in speeds.items():
        low, high = min(found), max(found)
        print(
            f"  {name:40} {statistics.median(found):>12,.0f} tokens/s ({low:,.0f} to {high:,.0f})"
            f"  peak {memory[name]:,.2f} GiB"
        )
    print(f"  ratio {statistics.median(speeds[ours.name]) / statistics.median(speeds[theirs.name]):.2f}")


def _in_a_process(way: Way) -> tuple[float, float]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(way, sender))
    process.start()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"{way.name} failed") from None
    finally:
        process.join()


def _measure(way: Way, sender: multiprocessing.connection.Connection) -> None:
    work = way.prepare()
    started = time.perf_counter()
    num_tokens = work()
    seconds = time.perf_counter() - started
    sender.send((num_tokens / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))
