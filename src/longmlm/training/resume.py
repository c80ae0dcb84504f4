"""Resuming: what a run continues from its checkpoint, and what must not have changed since."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.errors import CheckpointError
from longmlm.runtime.precision import resolved_precision
from longmlm.settings.pretrain import Precision, PretrainRecipe
from longmlm.training.checkpoint import RunRecord
from longmlm.training.run_folder import read_state
from longmlm.training.schedule import is_constant

LISTED = 3


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of the recipe that differs."""

    name: str
    was: object
    now: object

    def __str__(self) -> str:
        return f"recipe.{self.name} was {self.was}, is {self.now}"


def run_precision(
    requested: Precision, saved: CheckpointState | None, folder: Path | None
) -> tuple[Literal["no", "bf16"], tuple[str, ...]]:
    """Returns the precision that a run computes in, and a note if it is not the one `auto` means on this machine.

    A resumed run keeps its precision. Raises CheckpointError when this machine lacks it.
    """
    available = resolved_precision(requested)
    began = saved.precision if saved else None
    if requested != "auto" or began is None or began == available:
        return available, ()
    if began == "bf16":
        raise CheckpointError(
            f"{folder} was trained in bf16, which this machine does not support: resume it on one that does, or start "
            f"a run in another folder with start.checkpoint = {str(folder)!r} and recipe.precision = 'no'"
        )
    return began, (f"{folder} was trained in fp32: the run continues in it, though this machine supports {available}",)


def resumable_state(folder: Path, record: RunRecord) -> TrainState:
    """Returns the progress in a checkpoint; raises CheckpointError when recipe or rows are not those of its run.

    num_steps may change as long as no learning rate so far depended on it. The precisions compared are those that the
    run computes in, if the checkpoint recorded it.
    """
    saved = read_state(folder)
    now = record.at(saved.state)
    before, after = saved.recipe, now.recipe
    if saved.precision and now.precision:
        before, after = replace(before, precision=saved.precision), replace(after, precision=now.precision)
    changes = list(differences(before, after))
    if all(is_constant(saved.state.step, recipe) for recipe in (before, after)):
        changes = [change for change in changes if change.name != "num_steps"]
    problems = [str(change) for change in changes]
    if saved.rows_sha256 != now.rows_sha256:
        problems.append(f"rows were those with SHA-256 {saved.rows_sha256[:12]}, are those with {now.rows_sha256[:12]}")
    if problems:
        raise CheckpointError(
            f"{folder.parent.parent} was started with other settings: {', '.join(problems[:LISTED])}; name another run "
            f"folder, with start.checkpoint = {str(folder)!r} to start from these weights"
        )
    return saved.state


def differences(before: PretrainRecipe, now: PretrainRecipe) -> Iterator[Change]:
    """Yields each setting in which two recipes differ."""
    old, new = (dict(_leaves(asdict(recipe))) for recipe in (before, now))
    return (Change(name, old.get(name), new[name]) for name in new if old.get(name) != new[name])


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
