"""Retries: an attempt that is repeated while its failure may pass."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longmlm.errors import ReleaseError, UnavailableError

TOO_MANY_REQUESTS = 429

TRANSIENT = (408, TOO_MANY_REQUESTS, 500, 502, 503, 504)

WAITS_SECONDS = (1.0, 5.0, 25.0)

LONGEST_WAIT_SECONDS = 300.0  # hubs count requests in windows of minutes

TIMEOUT_SECONDS = 120.0

REFUSED = "the request was refused"


@dataclass(frozen=True, slots=True)
class Reason:
    """What a client's error means to a user, and after how many seconds another try may do, infinite for none."""

    error: ReleaseError
    wait: float = math.inf


def retry(attempt: Callable[[], str], reason_of: Callable[[Exception], Reason], waits: Sequence[float]) -> str:
    """Returns what the attempt does, which is begun again after each of the waits where that may help.

    Raises the reason of its last error.
    """
    for wait in (*waits, None):
        try:
            return attempt()
        except Exception as error:  # noqa: BLE001 - clients raise types of their own and of the libraries below
            reason = reason_of(error)
            if wait is None or reason.wait > LONGEST_WAIT_SECONDS:
                raise reason.error from None
            print(f"trying again: {reason.error}", file=sys.stderr)
            time.sleep(max(wait, reason.wait))
    raise AssertionError


def answered(status: int, name: str, said: str, remedy: str | None, asked_wait: float) -> Reason:
    """Returns the reason of a hub's answer: `said` holds no secret, and without a remedy it may pass, after a while."""
    told = f"the hub answers {status} for {name}" + (f" ({said})" if said else "")
    if remedy is not None:
        return Reason(ReleaseError(f"{told}: {remedy}"))
    if asked_wait > LONGEST_WAIT_SECONDS:
        return Reason(long_pause(asked_wait))
    return Reason(UnavailableError(f"{told}, publish again later: only what lacks is sent"), asked_wait)


def unreachable(said: str) -> Reason:
    """Returns the reason of a network that fails; `said` holds no secret."""
    return Reason(UnavailableError(f"the hub cannot be reached ({said}), check the network and publish again"), 0.0)


def long_pause(seconds: float) -> UnavailableError:
    """Returns the error of a hub that asks for a pause that is not waited for."""
    return UnavailableError(f"the hub asks for a pause of {seconds:,.0f} seconds: publish again then")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__
