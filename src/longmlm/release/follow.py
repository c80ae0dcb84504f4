"""A run in training to its best checkpoints, each published when it comes."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from longmlm.errors import ReleaseError, UnavailableError, UserError
from longmlm.release.candidates import has_ended, newest_best, refusal, step_of, unreadable

POLL_SECONDS = 30.0


def follow(run: Path, is_allowed: bool, publish_step: Callable[[Path], None]) -> None:
    """Publishes each new best checkpoint of a run, of which it only reads, until the run has ended.

    What may mend by itself is waited for: a hub that does not answer, a checkpoint that training removed meanwhile.
    """
    if not run.is_dir():
        raise ReleaseError(f"{run}: no such run folder: start pretrain.py first")
    seen, told = None, set[Path]()
    while True:
        is_over, best = has_ended(run), newest_best(run)
        for folder in set(unreadable(run)) - told:
            print(
                f"step {step_of(folder):,} is passed over: its state.json cannot be read", file=sys.stderr, flush=True
            )
            told.add(folder)
        if best is None or best == seen:
            if is_over:
                print("the run has ended", flush=True)
                return
            time.sleep(POLL_SECONDS)
            continue
        try:
            if reason := refusal(best, is_allowed):
                print(f"step {step_of(best):,} is not published: {reason}", flush=True)
            else:
                publish_step(best)
            seen = best
        except (UserError, OSError, KeyError) as error:
            was_removed = not best.is_dir()
            if is_over or not (was_removed or isinstance(error, UnavailableError)):
                raise
            print(f"step {step_of(best):,} is not published yet: {error}", file=sys.stderr, flush=True)
            time.sleep(POLL_SECONDS)
