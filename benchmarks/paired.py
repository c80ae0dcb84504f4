"""Compares longmlm with another library on the same work.

Each side runs several times, alternately, in fresh processes. Prints median speed, ratio and peak memory. The last
line is a JSON object: name, shape, ours, peer, ratio, unit, aim, met, memory, and `others` for further shapes. `ratio`
is our tokens/s divided by the peer's.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_ROUNDS, QUICK_ROUNDS = 5, 3


@dataclass(frozen=True, slots=True)
class Way:
    """A way of doing the work: `prepare` is not timed and returns the timed function, which returns the token count."""

    name: str
    prepare: Callable[[], Callable[[], int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Median, lowest and highest tokens/s over all rounds, and peak resident memory in GiB."""

    speed: float
    lowest: float
    highest: float
    gib: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The work in words (`shape`), our way and the peer's, and the targets.

    `aim` is the target for our tokens/s divided by the peer's, `memory_aim` for the peer's memory divided by ours.
    """

    shape: str
    ours: Way
    peer: Way
    aim: float
    memory_aim: float | None = None

    def measure(self, num_rounds: int) -> dict[str, object]:
        """Runs both, prints a line for each, and returns an entry for the JSON line."""
        found = _measure_alternately([self.ours, self.peer], num_rounds)
        print(f"{self.shape}, median of {num_rounds}")
        for way, one in zip((self.ours, self.peer), found, strict=True):
            spread = f"({one.lowest:,.0f} to {one.highest:,.0f})"
            print(f"  {way.name:40} {one.speed:>12,.0f} tokens/s {spread}  peak {one.gib:,.2f} GiB", flush=True)
        ours, peer = found
        ratio, memory_ratio = ours.speed / peer.speed, peer.gib / ours.gib
        print(f"  speed {ratio:.2f}x, memory {1 / memory_ratio:.2f}x the peer's", flush=True)
        met = ratio >= self.aim and (self.memory_aim is None or memory_ratio >= self.memory_aim)
        speeds = {"ours": ours.speed, "peer": peer.speed, "ratio": ratio, "unit": "tokens/s", "aim": self.aim}
        memory = {"ours_gib": ours.gib, "peer_gib": peer.gib, "memory_ratio": memory_ratio}
        entry: dict[str, object] = {"shape": self.shape}
        return {**entry, **speeds, "met": met, **memory, "memory_aim": self.memory_aim}


def run(name: str, description: str, full: Sequence[Comparison], quick: Sequence[Comparison]) -> None:
    """Runs the comparisons in `full`, or those in `quick` with --quick.

    The first is the main result; the rest go under `others` in the JSON line.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and, where possible, smaller inputs; under a minute"
    )
    is_quick = parser.parse_args().quick
    entries = [one.measure(QUICK_ROUNDS if is_quick else NUM_ROUNDS) for one in (quick if is_quick else full)]
    first, *others = entries
    print(json.dumps({"name": name, **first, **({"others": others} if others else {})}))


def _measure_alternately(ways: Sequence[Way], num_rounds: int) -> list[Measured]:
    """Runs each way once per round, each time in a fresh process."""
    speeds: list[list[float]] = [[] for _ in ways]
    peaks = [0.0] * len(ways)
    for _ in range(num_rounds):
        for number, way in enumerate(ways):
            speed, peak = _in_a_process(way)
            speeds[number].append(speed)
            peaks[number] = max(peaks[number], peak)
    return [
        Measured(statistics.median(found), min(found), max(found), peak)
        for found, peak in zip(speeds, peaks, strict=True)
    ]


def _in_a_process(way: Way) -> tuple[float, float]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(way, sender))
    process.start()
    sender.close()
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
