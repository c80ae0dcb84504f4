"""Retry: uploads and downloads are repeated here, and nowhere else, after transient failures.

A transfer is tried once and again after each of WAITS_SECONDS, or after the longer pause that the hub asks for. It
fails at once if the hub asks for a pause of more than LONGEST_WAIT_SECONDS, or if the failure is permanent (see
hubs/errors.py). Every attempt transfers only the files that are missing. The hubs' own clients repeat some single
requests within seconds; what they give up on is retried here.
"""

import errno
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from longmlm.errors import UserError
from longmlm.hubs.errors import Direction, TransferError, causes, user_error
from longmlm.settings.publishing import Target

WAITS_SECONDS = (1.0, 5.0, 25.0)
LONGEST_WAIT_SECONDS = 300.0  # hubs count requests in windows of minutes
TIMEOUT_SECONDS = 120.0  # of one request
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)

Result = TypeVar("Result")


def retry(
    attempt: Callable[[], Result],
    direction: Direction,
    target: Target,
    translate: Callable[[Exception], TransferError],
) -> Result:
    """Returns the attempt's result; `translate` belongs to the client that it uses.

    Raises a UserError with a one-line message for the last failure. A UserError of the attempt, and an OSError of the
    disk that is downloaded to, are passed on.
    """
    waits, last_message = iter(WAITS_SECONDS), ""
    while True:
        try:
            return attempt()
        except UserError:
            raise
        except Exception as error:
            if direction == "download" and isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            failure = next((cause for cause in causes(error) if isinstance(cause, TransferError)), translate(error))
            explained = user_error(failure, direction, target)
            wait = next(waits, None)
            if wait is None or not failure.is_transient or failure.retry_after > LONGEST_WAIT_SECONDS:
                raise explained from None
            if str(explained) != last_message:
                print(f"retrying: {explained}", file=sys.stderr, flush=True)
            last_message = str(explained)
            time.sleep(max(wait, failure.retry_after))
