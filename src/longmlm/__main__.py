"""The command `longmlm`, also as `python -m longmlm`: a stop signal is handled from the first import on."""

import os
import sys

from longmlm.processes import register
from longmlm.runtime.signals import StopSignalError, exit_at_once


def main(stage: str | None = None) -> None:
    """Runs the command line, or `stage` with its arguments."""
    exit_at_once()
    register()
    from longmlm.cli import main as command_line

    try:
        command_line(stage)
    except StopSignalError as stop:
        sys.stdout.flush()
        os._exit(128 + stop.number)  # without shutting down libraries that the signal has interrupted


if __name__ == "__main__":
    main()
