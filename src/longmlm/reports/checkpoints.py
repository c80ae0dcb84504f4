"""A run's checkpoints to a table of them."""

from pathlib import Path

from longmlm.errors import CheckpointError, FolderError
from longmlm.reports.tables import Table
from longmlm.training import checkpoint


def list_checkpoints(run: Path, is_verified: bool) -> tuple[Table, list[str]]:
    """Returns a line for each checkpoint, oldest first, and what is wrong with those that are not sound.

    Without `is_verified` the files are not read. Raises CheckpointError for a folder without checkpoints.
    """
    folders = checkpoint.folders(run)
    if not folders:
        raise CheckpointError(f"{run} holds no checkpoints: name the folder that pretrain.py wrote")
    problems = {folder: _problem(folder) for folder in folders} if is_verified else {}
    folders = [folder for folder in folders if folder.is_dir()]  # a run that goes on has removed some meanwhile
    chosen = max((pair for pair in checkpoint.evaluated(run) if not problems.get(pair[1])), default=(0.0, None))[1]
    lines = []
    for folder in folders:
        found = "unsound" if problems.get(folder) else "sound" if is_verified else ""
        lines.append([folder.name, *_figures(folder), found, "best" if folder == chosen else ""])
    header = ["checkpoint", "tokens", "accuracy in %", "MB", "verified", ""]
    return Table(header, lines), [problems[folder] for folder in folders if problems.get(folder)]


def _figures(folder: Path) -> list[str]:
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        state, _ = checkpoint.read_state(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return ["?", "?", "?"]
    is_measured = state.accuracy is not None and state.evaluated_at_step == state.step
    return [f"{state.tokens:,}", f"{state.accuracy:.2f}" if is_measured else "–", f"{size / 1e6:,.1f}"]


def _problem(folder: Path) -> str:
    try:
        checkpoint.check_sound(folder)
    except FolderError as error:
        return str(error)
    return ""
