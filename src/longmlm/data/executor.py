"""Packing of slices in this process, or in worker processes on this machine."""

import functools
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import psutil

from longmlm.data.corpus import Slice, slice_bytes
from longmlm.data.slices import SliceJob, Work, pack_slice
from longmlm.errors import DataError
from longmlm.processes import end_with_parent, ignore_stop_signals
from longmlm.progress import Progress
from longmlm.temporary import PARTIAL

CHECK_SECONDS, SUSPENDED_SECONDS = 5.0, 120.0


def run_slices(job: SliceJob, numbers: Sequence[int], work: Work = pack_slice, num_workers: int | None = None) -> None:
    """Does the work on the slices of these numbers in up to `num_workers` processes; a single one is this process.

    Raises DataError when a worker is killed or stays suspended. Any exception in this process, such as SystemExit on
    SIGTERM, kills them.
    """
    with progress_of(job, numbers) as progress:
        num_workers = min(num_workers or 1, len(numbers))
        if num_workers <= 1:
            for number in numbers:
                work(job, number)
                progress.advance(slice_bytes(job.slices[number]))
        else:
            _run_in_workers(job, numbers, work, num_workers, progress)


def progress_of(job: SliceJob, numbers: Sequence[int]) -> Progress:
    """Returns the progress in bytes of text when the slices of these numbers are left."""
    total = sum(map(slice_bytes, job.slices.values()))
    left = sum(slice_bytes(job.slices[number]) for number in numbers)
    return Progress("prepare", total, "B", total - left)


def _run_in_workers(job: SliceJob, numbers: Sequence[int], work: Work, num_workers: int, progress: Progress) -> None:
    context = multiprocessing.get_context("forkserver")
    others = set(multiprocessing.active_children())
    with job_file(job) as file, ProcessPoolExecutor(num_workers, context, initializer=_start_worker) as pool:
        try:
            tasks = {pool.submit(do_slice, work, file, number, job.slices[number]): number for number in numbers}
            for task in completed(tasks, others):
                task.result()
                progress.advance(slice_bytes(job.slices[tasks[task]]))
        except BrokenProcessPool:
            raise DataError(
                "a worker was killed, possibly because memory ran out: run the same command again with a smaller "
                "runtime.num_workers; finished slices are kept"
            ) from None
        except BaseException:
            # Nothing is cancelled: with its workers killed the pool fails every task, and a broken pool may hang on
            # cancelled ones.
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


@contextmanager
def job_file(job: SliceJob) -> Iterator[Path]:
    """Yields a file in the job's folder that holds the job without its slices, which may be millions of files."""
    with tempfile.NamedTemporaryFile(dir=job.folder, prefix="job.", suffix=PARTIAL) as file:
        file.write(pickle.dumps(replace(job, slices={})))
        file.flush()
        os.fsync(file.fileno())  # for other machines that share the disk
        yield Path(file.name)


def do_slice(work: Work, file: Path, number: int, spans: Slice) -> None:
    """Does the work on one slice with the job in a file."""
    work(replace(_job_in(file), slices={number: spans}), number)


@functools.lru_cache(maxsize=1)
def _job_in(file: Path) -> SliceJob:
    """Returns the job, which each process reads once, since each copy of a tokenizer leaks its size."""
    return pickle.loads(file.read_bytes())  # noqa: S301 - written by the main process


def completed(tasks: Iterable[Future[None]], others: Collection[BaseProcess]) -> Iterator[Future[None]]:
    """Yields each task when it has finished; raises DataError if a child process, except `others`, stays suspended."""
    pending, last_check, times_suspended = set(tasks), time.monotonic(), Counter[int]()
    while pending:
        done, pending = wait(pending, CHECK_SECONDS, FIRST_COMPLETED)
        yield from done
        if time.monotonic() - last_check >= CHECK_SECONDS:
            workers = {*multiprocessing.active_children()}.difference(others)
            check_running([worker.pid for worker in workers if worker.pid is not None], times_suspended)
            last_check = time.monotonic()


def check_running(workers: Iterable[int], times_suspended: Counter[int]) -> None:
    """Raises DataError if a process of `workers` has been suspended, as by SIGSTOP, for SUSPENDED_SECONDS.

    `times_suspended` counts in how many checks in a row each worker was suspended. The time between two checks does not
    count: this process may have been suspended, too.
    """
    for pid in workers:
        with suppress(psutil.NoSuchProcess):
            is_suspended = psutil.Process(pid).status() == psutil.STATUS_STOPPED
            times_suspended[pid] = times_suspended[pid] + 1 if is_suspended else 0
            if times_suspended[pid] * CHECK_SECONDS > SUSPENDED_SECONDS:
                raise DataError(
                    f"worker process {pid} has been suspended for {SUSPENDED_SECONDS:.0f} s: find out what stopped "
                    "it and run the same command again; finished slices are kept"
                )


def _start_worker() -> None:
    """Ties this worker's life to the fork server, its parent, and to the main process, which the server outlives."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # slices run in parallel, not these
    ignore_stop_signals()
    end_with_parent(signal.SIGKILL)
    Thread(target=_end_with_main, daemon=True).start()


def _end_with_main() -> None:
    if main := multiprocessing.parent_process():
        connection.wait([main.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
