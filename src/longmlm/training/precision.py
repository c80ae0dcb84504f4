"""What a run asks for to the precision that it computes in, from its first step to its last."""

from pathlib import Path

from longmlm.errors import CheckpointError
from longmlm.runtime.precision import resolved_precision
from longmlm.training import checkpoint


def precision_of_run(asked: str, resumed_from: Path | None) -> tuple[str, tuple[str, ...]]:
    """Returns the precision of a run, no (fp32) or bf16, and what is to be said of it.

    `auto` stands for the precision in which the checkpoint to resume was trained, where it tells one. Raises
    CheckpointError when this machine does not have that one.
    """
    here = resolved_precision(asked)
    begun = checkpoint.trained_precision(resumed_from) if resumed_from else None
    if resumed_from is None or asked != "auto" or begun in (None, here):
        return here, ()
    run = resumed_from.parent.parent
    if begun != "no":
        raise CheckpointError(
            f"{run} was begun in {begun}, which this machine does not compute in: go on where there is {begun}, or "
            f"begin a run in another folder with start.checkpoint = {str(resumed_from)!r} and recipe.precision = 'no'"
        )
    return begun, (f"{run} was begun in fp32 and goes on in it, though this machine has {here}",)
