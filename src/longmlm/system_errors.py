"""Errors of the operating system, such as a full disk: found in whatever a library raises, explained in one line."""

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longmlm.errors import UserError

FAILED = ("the disk or network file system failed", "check it and run the same command again")
UNSUPPORTED = ("the file system does not support what is needed, such as file locks", "use a folder on another one")
PROBLEMS = {  # what is wrong, and the remedy
    errno.ENOSPC: ("the disk is full", "free some space and run the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space and run the same command again"),
    errno.EFBIG: ("a file would be larger than allowed", "raise the limit (ulimit -f) and run the same command again"),
    errno.EROFS: ("the file system is read-only", "name a different path, or make it writable"),
    errno.ENFILE: ("this machine has too many files open", "close some programs and run the same command again"),
    # after ENFILE, whose words begin with those of EMFILE
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n) and run the same command again"),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EREMOTEIO), FAILED),
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), UNSUPPORTED),
}
UNUSABLE = (  # errors about a path: it is named, and the cause is in the system's own words
    errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EBUSY, errno.ENOTCONN,
)  # fmt: skip
NUMBER = re.compile(r"(?:\(os error |\[errno )(\d+)", re.IGNORECASE)  # as Rust and Arrow write it


def system_error(error: BaseException, path: Path | None = None) -> OSError | None:
    """Returns the error of the operating system that an exception is, was caused by, or quotes; None without one.

    It names `path`, unless it names a file itself. Libraries written in Rust and C++ raise types of their own, with the
    number or the words of the system in their message.
    """
    found = _found(error)
    if found is None:
        return None
    number, name = found[0], found[1] or path
    return OSError(number, os.strerror(number), *([str(name)] if name else []))


def explained(error: Exception) -> str | None:
    """Returns a line with the problem, the path and the remedy; None if the operating system is not the cause."""
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
        return f"{error.filename}: {error.strerror}: name a different path, or fix its permissions"
    found = _found(error)
    if found is None:
        return None
    number, name = found
    problem, remedy = PROBLEMS[number]
    if number == errno.EMFILE:
        problem = f"more than {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files are open"
    reason = [os.strerror(number)] if (problem, remedy) in (FAILED, UNSUPPORTED) else []
    details = ", ".join([*reason, *([str(name)] if name else [])])
    return f"{problem} ({details}): {remedy}" if details else f"{problem}: {remedy}"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises errors of the operating system as an OSError with a file name, which is `path` unless they have one."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = system_error(error, path)
        if found is None:
            raise
        raise found from error


def _found(error: BaseException | None) -> tuple[int, object] | None:
    """Returns number and file name of the first of PROBLEMS in an exception and its causes."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) and error.errno in PROBLEMS else _quoted(str(error))
        if number is not None:
            return number, getattr(error, "filename", None)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _quoted(message: str) -> int | None:
    if (match := NUMBER.search(message)) and int(match[1]) in PROBLEMS:
        return int(match[1])
    named = (number for number, problem in PROBLEMS.items() if problem is not UNSUPPORTED)
    return next((number for number in named if os.strerror(number) in message), None)
