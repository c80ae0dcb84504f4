"""Checkpoints of a run that may be published, and why the others may not."""

from pathlib import Path

from longmlm.artifacts.metrics import METRICS_FILE
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.run import RunSummary
from longmlm.errors import ArtifactError, FolderError
from longmlm.reports.model_card import training_of
from longmlm.training.run_folder import evaluated_checkpoints, list_checkpoints, read_state, verify_checkpoint


def step_of(folder: Path) -> int:
    """Returns the number of updates after which the checkpoint was saved."""
    return int(folder.name.removeprefix("step-"))


def refusal(folder: Path, allow_unrecovered: bool) -> str | None:
    """Returns why a checkpoint must not be published: it is damaged, or worse than its base model, or unmeasured.

    The last two are allowed with `allow_unrecovered`. None for a checkpoint that may be published.
    """
    try:
        verify_checkpoint(folder)
    except FolderError as error:
        return str(error)
    if allow_unrecovered:
        return None
    provenance, base_cut = read_provenance(folder), training_of(folder).base_cut
    accuracy = provenance.trained.accuracy if provenance.trained else None
    if accuracy is None:
        return "it was not evaluated when it was saved"
    if base_cut is None and provenance.extension:
        return "its run did not evaluate the base model, so nobody knows whether it is worse"
    if base_cut is not None and accuracy < base_cut:
        return f"its accuracy of {accuracy:.2f} % is below base_cut, {base_cut:.2f} %"
    return None


def latest_best(run: Path) -> Path | None:
    """Returns the checkpoint with the best accuracy so far, which a running training may remove at any time."""
    return max(evaluated_checkpoints(run), default=(0.0, None))[1]


def unreadable_checkpoints(run: Path) -> list[Path]:
    """Returns the checkpoints whose state cannot be read."""
    unreadable = []
    for folder in list_checkpoints(run):
        try:
            read_state(folder)
        except (OSError, ArtifactError):
            unreadable += [folder] if folder.is_dir() else []
    return unreadable


def is_finished(run: Path) -> bool:
    """Returns whether the run has written its summary after its last line of metrics."""
    try:
        return (run / RunSummary.FILE).stat().st_mtime_ns >= (run / METRICS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return False
