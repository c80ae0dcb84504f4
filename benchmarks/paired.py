"""Compares longmlm with another library on the same work.

Each side runs several times, alternately, in fresh processes. Prints medians, ratio and peak memory. The last line is a
JSON object: name, is_quick, shape, ours, peer, ratio, unit, aim, met, memory, and `others` for further shapes. `ratio`
is our figure divided by the peer's, or the inverse for seconds: above 1 is better.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar, TypeVarTuple

NUM_ROUNDS, QUICK_ROUNDS = 5, 3
QUICK = "--quick"

Unit = Literal["tokens/s", "MB/s", "GFLOP/s", "s"]
Given = TypeVarTuple("Given")
Found = TypeVar("Found")


def rate(work: Callable[[], float]) -> float:
    """Runs the work, which returns an amount such as a number of tokens, and returns that amount per second."""
    started = time.perf_counter()
    amount = work()
    return amount / (time.perf_counter() - started)


def seconds(work: Callable[[], float]) -> float:
    """Returns how long the work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def result(work: Callable[[], float]) -> float:
    """Returns what the work returns: for work that measures itself."""
    return work()


@dataclass(frozen=True, slots=True)
class Way:
    """A way of doing the work: `prepare`, which is not timed, returns the work, and `figure` measures it."""

    name: str
    prepare: Callable[[], Callable[[], float]]
    figure: Callable[[Callable[[], float]], float] = rate


@dataclass(frozen=True, slots=True)
class Measured:
    """Median, lowest and highest figure over all rounds; `gib` is the peak resident memory of the largest process."""

    median: float
    lowest: float
    highest: float
    gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One comparison, as in the JSON line; without a peer, the fields about it are None."""

    shape: str
    ours: float
    peer: float | None
    ratio: float | None
    unit: Unit
    aim: float | None
    met: bool | None
    peer_name: str | None
    ours_gib: float
    peer_gib: float | None
    memory_ratio: float | None
    memory_aim: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The work in words (`shape`), our way and the peer's, and the targets.

    `aim` is the target for the ratio, `memory_aim` for the peer's memory divided by ours; a ratio above `max_ratio`
    misses the target, too. Without a peer, only ours is measured.
    """

    shape: str
    ours: Way
    peer: Way | None
    aim: float | None = None
    memory_aim: float | None = None
    max_ratio: float | None = None
    unit: Unit = "tokens/s"

    def measure(self, num_rounds: int) -> Result:
        """Runs both and prints a line for each."""
        ways = [self.ours, *([self.peer] if self.peer else [])]
        print(f"{self.shape}, median of {num_rounds}")
        found = _measure_alternately(ways, num_rounds)
        for way, one in zip(ways, found, strict=True):
            spread = f"({_text(one.lowest)} to {_text(one.highest)})"
            print(f"  {way.name:40} {_text(one.median):>12} {self.unit} {spread}  peak {one.gib:,.2f} GiB", flush=True)
        ours, peer = found[0], found[1] if self.peer else None
        ratio = memory_ratio = met = None
        if peer:
            ratio = peer.median / ours.median if self.unit == "s" else ours.median / peer.median
            memory_ratio = peer.gib / ours.gib
            met = self._is_met(ratio, memory_ratio)
            print(
                f"  {ratio:.2f} times as good as the peer, which takes {memory_ratio:.2f} times the memory", flush=True
            )
        return Result(
            shape=self.shape,
            ours=ours.median,
            peer=peer.median if peer else None,
            ratio=ratio,
            unit=self.unit,
            aim=self.aim,
            met=met,
            peer_name=self.peer.name if self.peer else None,
            ours_gib=ours.gib,
            peer_gib=peer.gib if peer else None,
            memory_ratio=memory_ratio,
            memory_aim=self.memory_aim,
            rounds=num_rounds,
        )

    def _is_met(self, ratio: float, memory_ratio: float) -> bool | None:
        """Returns whether all targets are met; None without a target."""
        if self.aim is None:
            return None
        is_in_range = self.aim <= ratio <= (self.max_ratio or ratio)
        return is_in_range and memory_ratio >= (self.memory_aim or 0)


def options(description: str, num_rounds: int = NUM_ROUNDS, num_quick_rounds: int = QUICK_ROUNDS) -> tuple[bool, int]:
    """Returns whether the command line has --quick, and how many rounds to run."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=layout, allow_abbrev=False)
    parser.add_argument(QUICK, action="store_true", help="smaller inputs where possible; under a minute")
    rounds = f"rounds of which figures are the median; by default {num_rounds}, with --quick {num_quick_rounds}"
    parser.add_argument("--rounds", type=int, help=rounds)
    given = parser.parse_args()
    return given.quick, given.rounds or (num_quick_rounds if given.quick else num_rounds)


def run(
    name: str,
    description: str,
    full: Sequence[Comparison],
    quick: Sequence[Comparison],
    num_quick_rounds: int = QUICK_ROUNDS,
) -> None:
    """Runs the comparisons in `full`, or those in `quick` with --quick, and prints the JSON line."""
    is_quick, num_rounds = options(description, num_quick_rounds=num_quick_rounds)
    print_results(name, [one.measure(num_rounds) for one in (quick if is_quick else full)])


def print_results(name: str, results: Sequence[Result], **more: object) -> None:
    """Prints the JSON line: the first result, the rest under `others`, and whatever else the script measured."""
    first, *others = map(asdict, results)
    line = {"name": name, "is_quick": QUICK in sys.argv, **first, **more, **({"others": others} if others else {})}
    print(json.dumps(line, default=asdict))


def _text(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"  # noqa: PLR2004


def _measure_alternately(ways: Sequence[Way], num_rounds: int) -> list[Measured]:
    """Runs each way once per round, each time in a fresh process."""
    figures: list[list[float]] = [[] for _ in ways]
    peaks = [0.0] * len(ways)
    for _ in range(num_rounds):
        for number, way in enumerate(ways):
            figure, peak = in_a_process(_measure, way)
            figures[number].append(figure)
            peaks[number] = max(peaks[number], peak)
    return [
        Measured(statistics.median(found), min(found), max(found), peak)
        for found, peak in zip(figures, peaks, strict=True)
    ]


def _measure(way: Way) -> tuple[float, float]:
    figure = way.figure(way.prepare())
    peaks = (resource.getrusage(of).ru_maxrss for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return figure, max(peaks) / 2**20


def in_a_process(function: Callable[[*Given], Found], *arguments: *Given) -> Found:
    """Returns what the function returns in a forked process, whose temporary files are removed at its end.

    Raises RuntimeError if the process fails; its traceback is on stderr. Call it from a process that has not computed
    with torch: one that has must not fork.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work(folder: str) -> None:
        tempfile.tempdir = folder
        sender.send(function(*arguments))

    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=work, args=(folder,))
        process.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"{function} of {arguments} failed with exit code {process.exitcode}") from None
        finally:
            process.join()
