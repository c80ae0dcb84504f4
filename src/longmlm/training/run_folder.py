"""The checkpoints in a run folder: which exist, which are intact, which is the best. Imports no torch.

run/
    settings.toml metrics.jsonl summary.json    resolved settings, log, result so far
    index.html                                  page that shows the progress of the run
    checkpoints/step-00001000/                  written as step-00001000.partial, renamed when complete
        config.json model.safetensors tokenizer*.json   what transformers loads
        longmlm.json                                    base model, extension, training so far
        optimizer.pt rng-00000.pt ...                   the optimizer's full state; each rank's generator states
        state.json settings.toml                        CheckpointState, resolved settings
        manifest.json                                   size and SHA-256 of each file, written last
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.metrics import METRICS_FILE, EvaluationMetrics, MetricsFile
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.run import CheckpointState, Continuation, RunSummary
from longmlm.errors import ArtifactError, CheckpointError, FolderError, explained
from longmlm.folders import EARLIER, MANIFEST, finish_replacement, read_manifest, verify
from longmlm.settings.pretrain import PretrainConfig, Weight
from longmlm.temporary import PARTIAL, check_own_file, check_temporary, discard, is_own_file, mark, partial_of

SETTINGS = "settings.toml"
HEADER = "# longmlm pretrain settings.toml\n"
BACKEND_SETTINGS = "deepspeed.json"
RUN_FILES = (METRICS_FILE, RunSummary.FILE, BACKEND_SETTINGS, PAGE_FILE)
CHECKPOINTS = "checkpoints"
OPTIMIZER = "optimizer.pt"
MODEL_FILES = ("config.json", "model*.safetensors", Provenance.FILE)
STEP_FOLDER = re.compile(r"step-\d+")
REQUIRED_FILES = (*MODEL_FILES, OPTIMIZER, "rng-*.pt", SETTINGS, CheckpointState.FILE)


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """The newest intact checkpoint, None in a run without checkpoints, and a line for each newer, damaged one."""

    folder: Path | None
    skipped: tuple[str, ...]


def checkpoint_folder(run: Path, step: int) -> Path:
    """Returns the folder of the checkpoint after `step` updates."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, intact or not, the oldest first.

    Raises CheckpointError when they cannot be listed.
    """
    try:
        entries = list((run / CHECKPOINTS).iterdir())  # glob would take an unreadable folder for an empty one
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{run / 'checkpoints'} cannot be read ({error.strerror}): fix that and run the same command again"
        ) from error
    return sorted(folder for folder in entries if STEP_FOLDER.fullmatch(folder.name) and folder.is_dir())


def verify_checkpoint(folder: Path) -> None:
    """Reads every file; raises FolderError, which names the file, when a checkpoint is incomplete or damaged.

    Raises CheckpointError when a file cannot be read: the system failed, and the checkpoint may well be intact.
    """
    try:
        listed = read_manifest(folder)["files"]
        if missing := [name for name in REQUIRED_FILES if not any(fnmatch(file, name) for file in listed)]:
            raise FolderError(f"{folder / MANIFEST} does not list {missing[0]}: the checkpoint is incomplete")
        verify(folder)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FolderError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {explained(error) or error}, or move this checkpoint away to go on from another"
        ) from error


def damage_of(folder: Path) -> str:
    """Returns what is wrong with a checkpoint, of which every file is read; empty if it is intact.

    Raises CheckpointError when a file cannot be read.
    """
    try:
        verify_checkpoint(folder)
    except FolderError as error:
        return str(error)
    return ""


def newest_verified(run: Path) -> VerifiedCheckpoint:
    """Returns the newest intact checkpoint. One that a crash left moved aside while it was replaced is put back first.

    Raises CheckpointError when there are checkpoints and none is intact: a disk that is unmounted for a minute must not
    make a run start over.
    """
    for earlier in (run / CHECKPOINTS).glob(f"step-*{EARLIER}"):
        finish_replacement(earlier.with_name(earlier.name.removesuffix(EARLIER)))
    damaged: list[str] = []
    for folder in reversed(list_checkpoints(run)):
        damage = damage_of(folder)
        if not damage:
            return VerifiedCheckpoint(folder, tuple(f"skipped a damaged checkpoint: {line}" for line in damaged))
        damaged.append(f"{folder.name}: {damage}")
    if damaged:
        raise CheckpointError(
            f"{run} has no intact checkpoint ({'; '.join(damaged)}): make the disk readable or restore the files and "
            "run the same command again, or name a different run folder to start over"
        )
    return VerifiedCheckpoint(None, ())


def check_new_run(run: Path) -> None:
    """Raises FolderError if a new run would replace files of the user; the settings of a run show that it is one."""
    for name in (SETTINGS, *RUN_FILES) if not is_own_file(run / SETTINGS, HEADER) else ():
        check_own_file(run / name, HEADER)


def discard_partial_checkpoints(run: Path) -> None:
    """Removes the checkpoints that a killed process left incomplete.

    Raises FolderError, and removes nothing, if something that longmlm did not make has such a name.
    """
    partials = sorted((run / CHECKPOINTS).glob(f"*{PARTIAL}"))
    for partial in partials:
        check_temporary(partial)
    for partial in partials:
        discard(partial)


def check_still_newest(run: Path, resumed_from: Path | None) -> None:
    """Raises CheckpointError when another process has written to the run since `resumed_from` was chosen."""
    folders = list_checkpoints(run)
    newer = [folder for folder in folders if resumed_from is None or folder > resumed_from]
    if (newer or resumed_from not in (None, *folders)) and newest_verified(run).folder != resumed_from:
        raise CheckpointError(f"{run} has just been written to by another process: run the same command again")


def read_state(folder: Path) -> CheckpointState:
    """Returns the state of a checkpoint.

    Raises ArtifactError for a state that is damaged, of another step than its folder, or beyond the end of its run.
    """
    path = folder / CheckpointState.FILE
    saved = artifact.read(CheckpointState, path)
    step, num_steps = saved.state.step, saved.num_steps
    if step > num_steps or (STEP_FOLDER.fullmatch(folder.name) and step != int(folder.name.removeprefix("step-"))):
        raise ArtifactError(
            f"{path} is damaged: it is of step {step} of {num_steps}; move {folder} away to go on from another one"
        )
    return saved


def newest_state(run: Path) -> CheckpointState | None:
    """Returns the state of the newest readable checkpoint; damaged ones are skipped, as on resume."""
    for folder in reversed(list_checkpoints(run)):
        with suppress(ArtifactError):
            return read_state(folder)
    return None


def continuations_of(config: PretrainConfig, saved: CheckpointState | None) -> tuple[Continuation, ...]:
    """Returns the continuations of a run whose newest state is `saved`, including one that the settings add now.

    Raises CheckpointError if steps are added to a run that has not finished.
    """
    if config.more_steps is None:
        return saved.continuations if saved else ()
    remedy = "run the same command without --more-steps first"
    if saved is None:
        raise CheckpointError(f"--more-steps continues a finished run, but {config.run} has no checkpoint: {remedy}")
    try:
        return saved.with_added_steps(config.more_steps, config.runtime.stop_when_recovered)
    except ValueError as error:
        raise CheckpointError(f"--more-steps continues a finished run, but {config.run}: {error}: {remedy}") from None


def cursor_after(folder: Path, rows_sha256: str, seed: int, weights: Mapping[str, Weight]) -> int:
    """Returns the cursor of a checkpoint if a run with this seed reads the same rows in the same order, else 0.

    Of a folder that is no checkpoint, it is 0 too. Raises ArtifactError for a damaged state.
    """
    if not (folder / CheckpointState.FILE).is_file():
        return 0
    saved = read_state(folder)
    order = (saved.rows_sha256, saved.recipe.seed, saved.recipe.weights)
    return saved.state.cursor if order == (rows_sha256, seed, weights) else 0


def evaluated_checkpoints(run: Path) -> list[Path]:
    """Returns the checkpoints of a trained model that were saved at an evaluated step, the most accurate first.

    Of equal accuracies, the earliest comes first, as in `best_at_step`. One before the first step, which
    a stop signal may leave, and one whose state is damaged are left out; one that the system cannot read is an error.
    """
    accuracies = {}
    for folder in list_checkpoints(run):
        with suppress(ArtifactError):
            state = read_state(folder).state
            if state.step and state.accuracy_here is not None:
                accuracies[folder] = state.accuracy_here
    return sorted(sorted(accuracies), key=lambda folder: -accuracies[folder])


def best_checkpoint(run: Path) -> Path:
    """Returns the intact checkpoint with the highest held-out accuracy; the newest if none was evaluated.

    Raises CheckpointError for a run without an intact one, ArtifactError if the newest is of another format.
    """
    newest = newest_verified(run).folder
    if newest is None:
        raise CheckpointError(f"{run} has no checkpoint yet: let the pretrain stage save one first")
    read_state(newest)  # raises ArtifactError: a checkpoint of another format has no known accuracy
    return next(
        (folder for folder in evaluated_checkpoints(run) if folder == newest or not damage_of(folder)),
        newest,
    )


def model_or_best_checkpoint(name: str) -> str:
    """Returns the best checkpoint if `name` is a run folder, and any other name unchanged."""
    return str(best_checkpoint(Path(name))) if (Path(name) / CHECKPOINTS).is_dir() else name


def likely_best_checkpoint(name: str) -> str:
    """Returns what `model_or_best_checkpoint` does if all checkpoints are intact, of which it reads only the states."""
    run = Path(name)
    if not (run / CHECKPOINTS).is_dir():
        return name
    if chosen := [*evaluated_checkpoints(run)[:1], *reversed(list_checkpoints(run))]:
        return str(chosen[0])
    raise CheckpointError(f"{run} has no checkpoint yet: let the pretrain stage save one first")


def check_run(run: Path) -> None:
    """Raises CheckpointError if there is no run folder."""
    if not run.exists():
        raise CheckpointError(f"{run}: no such folder: run longmlm pretrain first, or check the path of run")


def evaluations_of(run: Path) -> tuple[EvaluationMetrics, ...]:
    """Returns what the evaluations during a run measured; raises CheckpointError if there are none."""
    check_run(run)
    if not (evaluations := MetricsFile(run).evaluations()):
        raise CheckpointError(f"{run} has no evaluations: set run to the folder that the pretrain stage wrote")
    return evaluations


def _best_up_to(folder: Path) -> list[Path]:
    """Returns the most accurate checkpoint of a run up to this one; an empty list if none was evaluated."""
    return [other for other in evaluated_checkpoints(folder.parents[1]) if other <= folder][:1]


def prune(run: Path, saved: Path, num_kept: int) -> list[Path]:
    """Removes all but the best and the `num_kept` newest checkpoints up to the one just saved; returns the removed.

    Later ones were skipped as damaged on resume: they do not count, and are replaced when training reaches their step.
    Until a continued run has made its last step, the last and the best checkpoint of the finished run are kept too.
    """
    reached = [folder for folder in list_checkpoints(run) if folder <= saved]
    kept = {*reached[-num_kept:], *_best_up_to(saved)}
    state = read_state(saved) if (saved / CheckpointState.FILE).is_file() else None
    if state and state.continuations and state.state.step < state.num_steps:
        finished = checkpoint_folder(run, state.continuations[-1].from_step)
        kept |= {finished, *_best_up_to(finished)}
    removed = [folder for folder in reached if folder not in kept]
    for folder in removed:
        doomed = partial_of(folder)
        check_temporary(doomed)
        discard(doomed)
        mark(folder)
        folder.rename(doomed)
        discard(doomed)
    return removed
