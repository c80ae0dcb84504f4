"""Retry: uploads and downloads are repeated here, and nowhere else, after transient failures.

A transfer is tried once and again after each of WAITS_SECONDS, or after the longer pause that the hub asks for. It
fails at once if the hub asks for a pause of more than LONGEST_WAIT_SECONDS, or if the failure is permanent (see
hubs/errors.py). Every attempt transfers only the files that are missing. The hubs' own clients repeat some single
requests within seconds; what they give up on is retried here.
"""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from longmlm.errors import UserError
from longmlm.hubs.errors import Direction, TransferError, cache_error, causes, user_error
from longmlm.settings.publishing import Target
from longmlm.system_errors import explained

WAITS_SECONDS = (1.0, 5.0, 25.0)
LONGEST_WAIT_SECONDS = 300.0  # hubs count requests in windows of minutes
TIMEOUT_SECONDS = 120.0  # of one request

Result = TypeVar("Result")


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
    waits, last_message = iter(WAITS_SECONDS), ""
    while True:
        try:
            return attempt()
        except UserError:
            raise
        except Exception as error:
            if direction == "download" and (line := explained(error)):
                raise cache_error(line, target) from error
            failure = next((cause for cause in causes(error) if isinstance(cause, TransferError)), translate(error))
            failed = user_error(failure, direction, target)
            wait = next(waits, None)
            if wait is None or not failure.is_transient or failure.retry_after > LONGEST_WAIT_SECONDS:
                raise failed from None
            if str(failed) != last_message:
                print(f"retrying: {failed}", file=sys.stderr, flush=True)
            last_message = str(failed)
            time.sleep(max(wait, failure.retry_after))
