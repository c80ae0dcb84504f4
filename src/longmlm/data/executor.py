"""Packing of slices in this process, or in worker processes on this machine."""

import multiprocessing
import os
import pickle
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from threading import Thread

from longmlm.data.corpus import slice_bytes
from longmlm.data.slices import SliceJob, pack_slice
from longmlm.errors import DataError
from longmlm.processes import end_with_parent, ignore_stop_signals
from longmlm.progress import Progress

_job_of_this_worker: list[SliceJob] = []


def run_slices(job: SliceJob, numbers: Sequence[int], num_workers: int = 1) -> None:
    """Packs the slices of these numbers in up to `num_workers` processes; one worker is this process.

    Raises DataError when a worker is killed. Any exception in this process, such as SystemExit on SIGTERM, kills them.
    """
    total = sum(map(slice_bytes, job.slices))
    left = sum(slice_bytes(job.slices[number]) for number in numbers)
    with Progress("prepare", total, "B", total - left) as progress:
        if min(num_workers, len(numbers)) <= 1:
            for number in numbers:
                pack_slice(job, number)
                progress.advance(slice_bytes(job.slices[number]))
        else:
            _run_in_workers(job, numbers, min(num_workers, len(numbers)), progress)


def _run_in_workers(job: SliceJob, numbers: Sequence[int], num_workers: int, progress: Progress) -> None:
    context, pickled = multiprocessing.get_context("forkserver"), pickle.dumps(job)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            tasks = {pool.submit(_pack, pickled, number): number for number in numbers}
            for task in as_completed(tasks):
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


def _start_worker() -> None:
    """Ties this worker's life to the fork server, its parent, and to the main process, which the server outlives."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # slices run in parallel, not the tokenizer
    ignore_stop_signals()
    end_with_parent(signal.SIGKILL)
    Thread(target=_end_with_main, daemon=True).start()


def _end_with_main() -> None:
    if main := multiprocessing.parent_process():
        connection.wait([main.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


def _pack(pickled: bytes, number: int) -> None:
    """Packs a slice with the job of the first task, since each copy of a tokenizer leaks its size.

    As an argument of the initializer the job would fill the pipe through which a worker starts: workers would start one
    by one, and the pool would wait forever for one that starts while another is killed.
    """
    if not _job_of_this_worker:
        _job_of_this_worker[:] = [pickle.loads(pickled)]  # noqa: S301 - sent by the main process
    pack_slice(_job_of_this_worker[0], number)
