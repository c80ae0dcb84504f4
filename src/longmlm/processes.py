"""What a process asks of the system and of its parent: its settings, a folder's lock, a thread, an exit."""

import ctypes
import errno
import fcntl
import math
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from longmlm.errors import USER_ERROR, FolderError, PipelineError, RankError, TrainingError, UserError, explained
from longmlm.escaping import single_line
from longmlm.temporary import LOCK, check_writable

Item = TypeVar("Item")
Result = TypeVar("Result")

# What flock answers on Lustre without the flock option, on some FUSE and 9p mounts, and on NFS for a folder (EBADF).
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
LAUNCHED = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun and DeepSpeed set them all
MPI = {"PMI_SIZE": "PMI_RANK", **{f"{mpi}_COMM_WORLD_SIZE": f"{mpi}_COMM_WORLD_RANK" for mpi in ("OMPI", "MV2")}}
RANKS = {  # variable with a number of processes: variable with this one's rank among them, as Accelerate reads them
    "WORLD_SIZE": "RANK",
    "LOCAL_WORLD_SIZE": "LOCAL_RANK",
    "MPI_LOCALNRANKS": "MPI_LOCALRANKID",
    **MPI,
    **{f"{mpi}_COMM_WORLD_LOCAL_SIZE": f"{mpi}_COMM_WORLD_LOCAL_RANK" for mpi in ("OMPI", "MV2")},
}
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # set by torchrun and by accelerate launch with several processes
LAUNCH_VARIABLES = {*LAUNCHED, *RANKS, *RANKS.values(), AGENT_STORE}
DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
MAX_PORT = 65535
FIRST_PROCESS_SECONDS = 20.0  # in which the first process of a machine may report the same error
PARENT_VARIABLE = "LONGMLM_PARENT"  # the name of the parent's socket, in the environment of child processes
ADDRESS = "\0longmlm-{}"  # in Linux's abstract namespace, where no file is left behind
SETTINGS_FROM_PARENT = "--settings-from-parent"  # the only argument of a command whose settings come from its parent

_connections: list[socket.socket] = []  # to the parent; a connection closes when nothing refers to it


def has_parent() -> bool:
    """Returns whether a longmlm process started this one; it passes every stop signal on as SIGTERM."""
    return PARENT_VARIABLE in os.environ


def register() -> None:
    """Connects this process to its parent, if it has one on this machine.

    The parent passes stop signals on to it, and learns the error that ends it. The kernel says which process has
    connected, and closes the connection when it ends. So nobody guesses which processes train: a launcher does not
    connect, and neither does a fork, such as a loader's worker.
    """
    if has_parent():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):  # a launcher has started this process on another machine, or the parent has ended
            connection.connect(ADDRESS.format(os.environ[PARENT_VARIABLE]))
        os.register_at_fork(after_in_child=connection.close)
        _connections.append(connection)


def settings_from_parent() -> Any:
    """Returns the settings that the parent has pickled into this process's standard input, which is empty from then on.

    They may hold a password, so that no process which this one starts may read them.
    """
    settings = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the process that started this one
    with Path(os.devnull).open("rb") as empty:
        os.dup2(empty.fileno(), sys.stdin.fileno())
    return settings


def end_with_parent(number: int) -> None:
    """Makes Linux send this process the signal `number` when its parent exits for any reason."""
    ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def ignore_stop_signals(_worker: int = 0) -> None:
    """Ignores SIGTERM and SIGINT: a whole process group receives them, and the main process handles them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def overlapping(
    change: Callable[[], AbstractContextManager[object]],
) -> Callable[[], AbstractContextManager[None]]:
    """Returns the change of something that the whole process shares, for blocks that may overlap in any order.

    The first block makes the change, and the end of the last one undoes it. Blocks overlap in threads, and in
    generators that are suspended within one.
    """
    lock, until_last, num_blocks = threading.RLock(), ExitStack(), 0  # garbage collection may end one within the lock

    @contextmanager
    def block() -> Iterator[None]:
        nonlocal num_blocks
        with lock:
            if not num_blocks:
                until_last.enter_context(change())
            num_blocks += 1
        try:
            yield
        finally:
            with lock:
                num_blocks -= 1
                if not num_blocks:
                    until_last.close()

    return block


@overlapping
@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Makes this process the parent of orphaned descendants in the block, so that it can wait for them."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(36, 0)


def num_started_processes() -> int:
    """Returns how many processes the launcher started, 1 without one; raises TrainingError as `check_launched` does."""
    check_launched()
    names = ["WORLD_SIZE"] if is_launched() else ["WORLD_SIZE", *MPI]
    return max((int(os.environ[name]) for name in names if name in os.environ), default=1)


def is_launched() -> bool:
    """Returns whether a launcher has set the local rank of this process, as Accelerate reads it."""
    return os.environ.get("LOCAL_RANK", "-1") != "-1"


def check_launched() -> None:
    """Raises TrainingError if the environment has some of a launcher's variables but not all, or ones that disagree."""
    if problem := _launch_problem():
        raise TrainingError(f"{problem}: start the processes with accelerate launch, or unset it")


def prints_errors() -> bool:
    """Returns whether this process prints what all processes of its machine would: it is the first, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") in ("0", "-1") or _launch_problem() is not None


@contextmanager
def user_errors() -> Iterator[None]:
    """Turns an error that the user can fix into one line on standard error and exit code 2."""
    try:
        yield
    except PipelineError as error:  # the stage has printed what is wrong
        sys.exit(error.exit_code)
    except UserError as error:
        fail(error)
    except Exception as error:
        if (line := explained(error)) is None:
            raise
        fail(UserError(line))


def fail(error: UserError) -> None:
    """Prints an error in one line to standard error, sends it to the parent, and exits with code 2.

    A launcher stops all processes when one exits. So a process that is not the first of its machine waits before it
    prints: usually the first process finds the same error, prints it, and this one is stopped. A RankError is printed
    at once.
    """
    if not prints_errors() and not isinstance(error, RankError):
        time.sleep(FIRST_PROCESS_SECONDS)
    print(f"error: {single_line(str(error))}", file=sys.stderr, flush=True)
    for connection in _connections:
        with suppress(OSError):
            connection.sendall(pickle.dumps(error))
    sys.exit(USER_ERROR)


def _launch_problem() -> str | None:
    """Returns what shows that no launcher, such as torchrun, set the variables that it sets; None if all is well."""
    numbers: dict[str, int] = {}
    for name in ("MASTER_PORT", *RANKS, *RANKS.values()):
        value, lowest = os.environ.get(name), int(name in RANKS)
        if value is None or (name == "LOCAL_RANK" and not is_launched()):
            continue
        if not value.isdecimal() or int(value) < lowest or (name == "MASTER_PORT" and int(value) > MAX_PORT):
            allowed = f"a port up to {MAX_PORT}" if name == "MASTER_PORT" else f"an integer of at least {lowest}"
            return f"{name} = {value!r} in the environment is not {allowed}"
        numbers[name] = int(value)
    if not is_launched() and os.environ.get(DEEPSPEED, "").lower() == "true":
        return f"{DEEPSPEED} is set in the environment, but no launcher started this process"
    marks = [name for name in (*MPI, "WORLD_SIZE") if numbers.get(name, 1) > 1]
    if is_launched() or os.environ.get(AGENT_STORE) == str(True):
        marks = ["LOCAL_RANK" if is_launched() else AGENT_STORE]
    return _contradiction(marks[0], numbers) if marks else None


def _contradiction(mark: str, numbers: Mapping[str, int]) -> str | None:
    """Returns what is missing beside a variable that only launchers set, or which of their numbers contradict."""
    needed = ("MASTER_ADDR", MPI[mark]) if mark in MPI else LAUNCHED
    for name in needed:
        if os.environ.get(name, "-1") in ("", "-1"):
            return f"{mark} is set in the environment, but {name} is not"
    for size, rank in (*RANKS.items(), ("WORLD_SIZE", "LOCAL_RANK")):
        if numbers.get(rank, 0) >= numbers.get(size, math.inf):
            return f"{rank} = {numbers[rank]} in the environment, but {size} is {numbers[size]}"
    for name, own in ((mark, "WORLD_SIZE"), (MPI[mark], "RANK")) if mark in MPI else ():  # Accelerate takes the second
        if numbers.get(own, numbers[name]) != numbers[name]:
            return f"{name} = {numbers[name]} in the environment, but {own} is {numbers[own]}"
    return None


def check_num_processes(started: int, required: int | None) -> None:
    """Raises TrainingError unless the `required` number of processes was started; None accepts any number."""
    if required not in (None, started):
        raise TrainingError(
            f"runtime.num_processes is {required}, but {started} were started: use an Accelerate config that starts "
            "that many"
        )


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Creates `folder` and holds its lock in the block.

    Raises FolderError if it cannot be created or written, or if another process holds the lock.
    """
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # as in /proc
        raise FolderError(f"{folder} cannot be created: name a different path") from error
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise FolderError(f"{folder / LOCK} is not a file of longmlm's: remove it or name another output") from error
    try:
        lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, folder: Path) -> None:
    """Locks an open file for the writer of `folder`; raises FolderError if another process holds the lock.

    Where the file system has no locks, one line says what is not protected, and the work goes on.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderError(f"{folder} is being written by another process: wait for it, or stop it") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        print(
            f"note: the file system of {folder} has no file locks ({os.strerror(error.errno or 0)}): start no other "
            "process that writes there",
            flush=True,
        )


def one_ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yields each item with what `work` returns for it; a thread works on the next one while the caller uses this."""
    with ThreadPoolExecutor(1) as pool:
        waiting = []
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 1:
                first, future = waiting.pop(0)
                yield first, future.result()
        for last, future in waiting:
            yield last, future.result()
