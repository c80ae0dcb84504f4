"""A run to those of its checkpoints that may be published."""

from pathlib import Path

from longmlm.artifacts.metrics import METRICS_FILE
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.run import RunSummary
from longmlm.errors import ArtifactError, FolderError
from longmlm.reports.facts import training_of
from longmlm.training.run_folder import evaluated_checkpoints, list_checkpoints, read_state, verify_checkpoint


def step_of(folder: Path) -> int:
    """Returns the number of updates after which the checkpoint was saved."""
    return int(folder.name.removeprefix("step-"))


def refusal(folder: Path, is_allowed: bool) -> str | None:
    """Returns why a checkpoint is not published: it is damaged, or, unless allowed, not known to equal its base."""
    try:
        verify_checkpoint(folder)
    except FolderError as error:
        return str(error)
    if is_allowed:
        return None
    provenance, training = read_provenance(folder), training_of(folder)
    accuracy = provenance.trained.accuracy if provenance.trained else None
    if accuracy is None:
        return "it was not evaluated when it was saved"
    if training.base_cut is None and provenance.extension:
        return "its run did not measure the base model, so that nobody knows whether it is worse"
    if training.base_cut is not None and accuracy < training.base_cut:
        return f"its {accuracy:.2f} % is below base_cut {training.base_cut:.2f} %"
    return None


def newest_best(run: Path) -> Path | None:
    """Returns the checkpoint with the best accuracy so far, which a run in training may be about to remove."""
    return max(evaluated_checkpoints(run), default=(0.0, None))[1]


def unreadable(run: Path) -> list[Path]:
    """Returns the checkpoints that are there and whose state cannot be read."""
    found = []
    for folder in list_checkpoints(run):
        try:
            read_state(folder)
        except (OSError, ArtifactError):
            found += [folder] if folder.is_dir() else []
    return found


def has_ended(run: Path) -> bool:
    """Tells whether the run has written its summary, and nothing since."""
    try:
        return (run / RunSummary.FILE).stat().st_mtime_ns >= (run / METRICS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return False
