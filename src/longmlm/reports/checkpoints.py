"""The table of a run's checkpoints."""

from pathlib import Path

from longmlm.errors import ArtifactError, CheckpointError
from longmlm.reports.tables import Table
from longmlm.training.run_folder import damage_of, evaluated_checkpoints, list_checkpoints, read_state

HEADER = ["checkpoint", "tokens", "accuracy in %", "MB", "verified", ""]


def checkpoint_table(run: Path, is_verified: bool) -> tuple[Table, list[str]]:
    """Returns a line for each checkpoint, oldest first, and what is wrong with those that are damaged.

    Without `is_verified` the files are not read. Raises CheckpointError for a folder without checkpoints.
    """
    folders = list_checkpoints(run)
    if not folders:
        raise CheckpointError(f"{run} has no checkpoints: name the folder that the pretrain stage wrote")
    damage = {folder: damage_of(folder) for folder in folders} if is_verified else {}
    folders = [folder for folder in folders if folder.is_dir()]  # a run that trains may have pruned some
    intact = (pair for pair in evaluated_checkpoints(run) if not damage.get(pair[1]))
    best = max(intact, default=(0.0, None))[1]
    lines = []
    for folder in folders:
        status = "damaged" if damage.get(folder) else "intact" if is_verified else ""
        lines.append([folder.name, *_numbers(folder), status, "best" if folder == best else ""])
    return Table(HEADER, lines), [damage[folder] for folder in folders if damage.get(folder)]


def _numbers(folder: Path) -> list[str]:
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        state = read_state(folder).state
    except (ArtifactError, OSError):
        return ["?", "?", "?"]
    accuracy = "–" if state.accuracy_here is None else f"{state.accuracy_here:.2f}"
    return [f"{state.tokens:,}", accuracy, f"{size / 1e6:,.1f}"]
