"""Following a run in training: publishes each new best checkpoint until the run is finished."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from longmlm.errors import ReleaseError, UnavailableError, UserError
from longmlm.release.candidates import is_finished, latest_best, refusal, step_of, unreadable_checkpoints

POLL_SECONDS = 30.0


def follow(run: Path, allow_unrecovered: bool, publish_step: Callable[[Path], None]) -> None:
    """Publishes each new best checkpoint of a run, which is only read, until the run is finished.

    An unavailable hub, and a checkpoint that training removes meanwhile, are waited for; other errors are raised.
    """
    if not run.is_dir():
        raise ReleaseError(f"{run}: no such run folder: start pretrain.py first")
    published, reported = None, set[Path]()
    while True:
        was_finished, best = is_finished(run), latest_best(run)
        for folder in set(unreadable_checkpoints(run)) - reported:
            reported.add(folder)
            print(f"step {step_of(folder):,} is skipped: its state.json cannot be read", file=sys.stderr, flush=True)
        if best is not None and best != published:
            try:
                if reason := refusal(best, allow_unrecovered):
                    print(f"step {step_of(best):,} is not published: {reason}", flush=True)
                else:
                    publish_step(best)
                published = best
                continue
            except (UserError, OSError, KeyError) as error:
                may_pass = isinstance(error, UnavailableError) or not best.is_dir()
                if was_finished or not may_pass:
                    raise
                print(f"step {step_of(best):,} is not published yet: {error}", file=sys.stderr, flush=True)
        elif was_finished:
            print("the run is finished", flush=True)
            return
        time.sleep(POLL_SECONDS)
