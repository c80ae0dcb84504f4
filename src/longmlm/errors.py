"""Errors that the user can fix: a command prints the one-line message and exits with code 2."""

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 row", "2,000 rows" and "2 classes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


class UserError(Exception):
    """An error whose one-line message says what is wrong, where, and how to fix it."""


class ConfigError(UserError):
    """A settings file or a command-line option that cannot be used."""


class DataError(UserError):
    """A corpus, a tokenizer or packed rows that cannot be used."""


class AbsentError(DataError):
    """Text, or a file that describes it, is missing, or its server does not respond."""


class EncoderError(DataError):
    """A fast encoder that does not give the tokens of the tokenizer."""


class ArtifactError(UserError):
    """A stage's output file that is missing, damaged, or of an unsupported format."""


class FolderError(UserError):
    """A folder that is damaged, incomplete, or that already exists."""


class ModelError(UserError):
    """A model that cannot be used: missing, of an unsupported architecture, without an MLM head."""


class ModelNotFoundError(ModelError):
    """A model name that is neither a folder nor a repository, or a revision that the repository does not have."""


class ModelUnavailableError(ModelError):
    """A model whose hub does not respond."""


class PositionsError(UserError):
    """A position table that cannot be extended to the requested length."""


class CheckpointError(UserError):
    """A run's checkpoint that is missing, damaged, or from a different run."""


class TrainingError(UserError):
    """A run that cannot start, continue or resume."""


class RankError(TrainingError):
    """Raised by one rank alone, which prints it at once: the other ranks only notice that it has exited."""


USER_ERROR = 2  # exit code of a command whose settings or data are wrong


class PipelineError(UserError):
    """A pipeline in which a stage failed or was stopped; the message is the error that the stage printed.

    `exit_code` is that of `longmlm run`: 2 for an error that the user can fix, 128 + the signal's number for a signal.
    """

    def __init__(self, message: str, exit_code: int = USER_ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ReleaseError(UserError):
    """A model that must not be released as it is."""


class UnavailableError(ReleaseError):
    """A hub that does not respond, or not yet."""


# what a command does when it is started again
RESUMES = "the same command resumes"
RESUMES_FROM_CHECKPOINT = f"{RESUMES} from the last checkpoint, if there is one"
STARTS_OVER = "the same command starts over"

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
    seen: list[BaseException] = []  # libraries raise errors that are among their own causes
    while error is not None and error not in seen:
        seen.append(error)
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
