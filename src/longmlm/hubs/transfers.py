"""Transfers to and from hubs and storage: what can go wrong, the one-line message for it without secrets, retries.

A transfer is tried once and again after each of WAITS_SECONDS, or after the longer pause that the hub asks for; a
download from a server that cannot be connected to, only after the first of them. It fails at once if the hub asks for a
pause of more than LONGEST_WAIT_SECONDS, or if the failure is permanent. Every attempt transfers only the files that are
missing. The hubs' own clients repeat some single requests within seconds; what they give up on is retried here.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeVar

from longmlm.errors import (
    AbsentError,
    DataError,
    ModelError,
    ModelNotFoundError,
    ModelUnavailableError,
    ReleaseError,
    UnavailableError,
    UserError,
    explained,
)
from longmlm.settings.publishing import Hub, Target

Direction = Literal["upload", "download"]
TRANSIENT = (408, 429, 500, 502, 503, 504)
LOGINS: dict[Hub, str] = {
    "hf": "set HF_TOKEN to a valid token, or log in with `hf auth login`",
    "ms": "set MODELSCOPE_API_TOKEN to a valid token",
    "storage": "set valid credentials (for s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)",
}
CACHES: dict[Hub, str] = {"hf": "HF_HOME", "ms": "MODELSCOPE_CACHE"}
SIGNED_QUERY = re.compile(r"\?[^\s?=]+=[^\s)]*|(?<=://)(?P<path>[^\s?#)]*)[?#][^\s)]+")
USER_IN_ADDRESS = re.compile(r"(?<=://)(?:[^/@:\s]*:(?!\d+(?:[/?#\s]|$))\S*@|[^/@?#\s]+@)")
SECRET_VARIABLE = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
NOT_CONNECTED = re.compile("Connect(?:Error|Timeout|ionRefused)|NewConnection|NameResolution|gaierror")
MIN_SECRET_LENGTH = 8  # shorter values are words such as `true`
MAX_MESSAGE_LENGTH = 300
WAITS_SECONDS = (1.0, 5.0, 25.0)
LONGEST_WAIT_SECONDS = 300.0  # hubs count requests in windows of minutes
TIMEOUT_SECONDS = 120.0  # of one request
Result = TypeVar("Result")


class Cause(Enum):
    """Why a transfer failed: the problem and the remedy, as shown to the user."""

    UNAUTHORIZED = ("access needs a valid token", "check its name, and {login}")
    PAYMENT_REQUIRED = ("its owner's plan does not cover this", "choose another owner, or change the plan")
    FORBIDDEN = ("access is forbidden", "use a token that may {direction}, or free some space if a quota is full")
    GATED = ("access is granted on request", "accept its conditions on the hub, and {login}")
    NOT_FOUND = ("no such repository, folder or file", "check its name; if it is private, {login}")
    NO_REVISION = ("it has no revision {revision!r}", "name a branch, a tag or a commit")
    OFFLINE = ("HF_HUB_OFFLINE is set", "unset it")
    UNREACHABLE = ("the server cannot be reached", "check the network and run the same command again: {kept}")
    UNAVAILABLE = ("the server is unavailable", "run the same command again later: {kept}")
    REFUSED = ("the server refused the request", "correct what it objects to")
    UNUSABLE = ("it cannot be {used}", "correct this and run the same command again")


CAUSES = {401: Cause.UNAUTHORIZED, 402: Cause.PAYMENT_REQUIRED, 403: Cause.FORBIDDEN, 404: Cause.NOT_FOUND}


@dataclass(eq=False)
class TransferError(Exception):
    """A failed transfer: what the exceptions of each client are translated to.

    `message` is the status and what the server or the client said, redacted; `retry_after` is the pause in seconds that
    the server asks for.
    """

    cause: Cause
    message: str = ""
    retry_after: float = 0.0

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.cause in (Cause.UNREACHABLE, Cause.UNAVAILABLE)


def request_error(status: int, message: str, retry_after: float = 0.0) -> TransferError:
    """Returns the error for an HTTP status."""
    cause = Cause.UNAVAILABLE if status in TRANSIENT else CAUSES.get(status, Cause.REFUSED)
    return TransferError(cause, f"status {status}, {message}" if message else f"status {status}", retry_after)


def user_error(error: TransferError, direction: Direction, target: Target) -> UserError:
    """Returns the error whose one-line message says what failed, where, and how to fix it."""
    words = {"direction": direction, "used": "written to" if direction == "upload" else "read"}
    is_read = direction == "download" and target.hub == "storage"  # of a corpus, which is not copied
    kept = "finished slices are kept" if is_read else f"only missing files are {direction}ed"
    words |= {"login": LOGINS[target.hub], "kept": kept}
    problem, remedy = (part.format(**words, revision=target.revision) for part in error.cause.value)
    pause = f"it asks for a pause of {error.retry_after:,.0f} seconds" if error.retry_after else ""
    is_unavailable = error.is_transient or error.cause is Cause.OFFLINE
    if is_unavailable and direction == "download" and target.hub == "hf" and "://" not in target.name:
        problem = f"no such folder here, and {problem}"
    details = ", ".join(filter(None, (error.message, pause)))
    problem += f" ({details})" if details else ""
    line = f"{_shown(target, direction)}: {problem}; {remedy}"
    if direction == "upload":
        return UnavailableError(line) if error.is_transient else ReleaseError(line)
    if target.kind == "dataset":
        return AbsentError(line) if is_unavailable or error.cause is Cause.NOT_FOUND else DataError(line)
    if error.cause in (Cause.NOT_FOUND, Cause.NO_REVISION):
        return ModelNotFoundError(line)
    return ModelUnavailableError(line) if is_unavailable else ModelError(line)


def _shown(target: Target, direction: Direction) -> str:
    """Returns the name as the user writes it: ms:OWNER/NAME for a model to download from ModelScope."""
    return f"{'ms:' if target.hub == 'ms' and direction == 'download' else ''}{redact(target.name)}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception, the exception that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def redact(text: str, *secrets: str | None) -> str:
    """Returns the text as one line of at most 300 characters, without anything that grants access.

    It removes the given secrets, the values of environment variables whose names suggest a secret, the query strings
    of URLs, which may hold a signature, and user names and passwords in URLs.
    """
    environment = [value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)]
    known = [*filter(None, secrets), *(value for value in environment if len(value) >= MIN_SECRET_LENGTH)]
    for secret in sorted(known, key=len, reverse=True):  # one may be a prefix of another
        text = text.replace(secret, "***")
    return SIGNED_QUERY.sub(r"\g<path>", USER_IN_ADDRESS.sub("", " ".join(text.split())))[:MAX_MESSAGE_LENGTH]


def _described(error: BaseException | None) -> str:
    """Returns the types and messages of an exception and of those that it was raised from or after."""
    seen: list[BaseException] = []  # libraries raise errors that are among their own causes
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return " ".join(f"{type(one).__name__} {one}" for one in seen)


def retry(
    attempt: Callable[[], Result],
    direction: Direction,
    target: Target,
    translate: Callable[[Exception], TransferError],
) -> Result:
    """Returns the attempt's result; `translate` belongs to the client that it uses.

    Raises a UserError with a one-line message for the last failure, or for the first one of the disk that is downloaded
    to. A UserError of the attempt is passed on.
    """
    waits: Iterator[float] | None = None
    last_message = ""
    while True:
        try:
            return attempt()
        except UserError:
            raise
        except Exception as error:
            if direction == "download" and (line := explained(error)):
                kind = DataError if target.kind == "dataset" else ModelError
                where = f"the environment variable {CACHES.get(target.hub, 'HF_HOME')} names the folder of downloads"
                raise kind(f"{_shown(target, direction)}: {line}; {where}") from error
            failure = next((cause for cause in causes(error) if isinstance(cause, TransferError)), translate(error))
            failed = user_error(failure, direction, target)
            if waits is None:
                is_reached = direction == "upload" or not NOT_CONNECTED.search(_described(error))
                waits = iter(WAITS_SECONDS if is_reached else WAITS_SECONDS[:1])
            wait = next(waits, None)
            if wait is None or not failure.is_transient or failure.retry_after > LONGEST_WAIT_SECONDS:
                raise failed from None
            if str(failed) != last_message:
                print(f"retrying: {failed}", file=sys.stderr, flush=True)
            last_message = str(failed)
            time.sleep(max(wait, failure.retry_after))
