"""The checkpoints stage: lists or verifies a run's checkpoints, or exports one of them."""

from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import ArtifactError, CheckpointError, FolderError, counted
from longmlm.folders import bytes_in, check_absent, new_folder, read_manifest, unlisted_note
from longmlm.reports.tables import Table, text_table
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.training.run_folder import (
    best_checkpoint,
    check_run,
    checkpoint_folder,
    damage_of,
    evaluated_checkpoints,
    list_checkpoints,
    read_state,
    verify_checkpoint,
)

HEADER = ["checkpoint", "tokens", "accuracy in %", "MB", "verified", ""]


def checkpoints(config: CheckpointsConfig) -> None:
    """Prints a line for each checkpoint; raises CheckpointError when one is damaged or cannot be exported."""
    if config.action == "export":
        export_checkpoint(config)
        return
    table, problems = checkpoint_table(Path(config.run), is_verified=config.action == "verify")
    print(text_table(table))
    if config.action == "verify":
        print_unlisted(Path(config.run))
    by_status = {status: [one.line for one in problems if one.status == status] for status in ("damaged", "unreadable")}
    if problems:
        total = counted(len(table.lines), "checkpoint")
        raise CheckpointError(
            "; ".join(
                f"{status}: {len(found)} of {total}: {'; '.join(found)}" for status, found in by_status.items() if found
            )
        )


class Problem(NamedTuple):
    """What is wrong with a checkpoint: it is damaged, or the system could not read it and it may be intact."""

    status: Literal["damaged", "unreadable"]
    line: str


def checkpoint_table(run: Path, is_verified: bool) -> tuple[Table, list[Problem]]:
    """Returns a line for each checkpoint, oldest first, and what is wrong with those that are damaged or unreadable.

    Without `is_verified` the files are not read. Raises CheckpointError for a folder without checkpoints.
    """
    check_run(run)
    folders = list_checkpoints(run)
    if not folders:
        raise CheckpointError(f"{run} has no checkpoints: name the folder that the pretrain stage wrote")
    damage = {folder: _problem_of(folder) for folder in folders} if is_verified else {}
    folders = [folder for folder in folders if folder.is_dir()]  # a run that trains may have pruned some
    best = next((folder for folder in evaluated_checkpoints(run) if not damage.get(folder)), None)
    lines = []
    for folder in folders:
        problem = damage.get(folder)
        status = problem.status if problem else "intact" if is_verified else ""
        lines.append([folder.name, *_numbers(folder), status, "best" if folder == best else ""])
    return Table(HEADER, lines), [problem for folder in folders if (problem := damage.get(folder))]


def _problem_of(folder: Path) -> Problem | None:
    """Returns what is wrong with a checkpoint; one that cannot be read keeps no other from being verified."""
    try:
        line = damage_of(folder)
    except CheckpointError as error:
        return Problem("unreadable", str(error))
    return Problem("damaged", line) if line else None


def print_unlisted(run: Path) -> None:
    """Prints a line for each checkpoint that holds files which its manifest does not list: nothing verifies those."""
    for folder in list_checkpoints(run):
        with suppress(FolderError):  # the table says what is wrong with it
            if note := unlisted_note(folder, read_manifest(folder)["files"]):
                print(f"not verified: {note}")


def _numbers(folder: Path) -> list[str]:
    try:
        size, state = bytes_in(folder), read_state(folder).state
    except (ArtifactError, OSError):
        return ["?", "?", "?"]
    accuracy = "–" if state.accuracy_here is None else f"{state.accuracy_here:.2f}"
    return [f"{state.tokens:,}", accuracy, f"{size / 1e6:,.1f}"]


def export_checkpoint(config: CheckpointsConfig) -> None:
    """Writes the weights of one checkpoint, the best if no step is given, as a folder that transformers loads."""
    run, output = Path(config.run), Path(str(config.output))
    check_absent(output)
    source = best_checkpoint(run) if config.step is None else checkpoint_folder(run, config.step)
    verify_checkpoint(source)
    # these import torch, which listing, verifying and rejecting do without
    from longmlm.model.loading import load_trained
    from longmlm.release.export import export

    with new_folder(output) as partial:
        loaded = load_trained(str(source))
        export(loaded, "fp32", partial)
        artifact.write(partial / Provenance.FILE, loaded.provenance)
    print(f"exported {source.name} to {output}, without proof and card: the release stage makes both")
