"""A run's state to numbered folders that are whole or absent, and back.

run/checkpoints/step-00001000/
    config.json model.safetensors tokenizer*.json   what transformers loads
    longmlm.json                                    base model, extension, training so far
    optimizer.pt rng-00000.pt ...                   AdamW's state, whole; a generator state for each process
    state.json settings.toml                        TrainState, what the run depends on, resolved settings
    manifest.json                                   size and SHA-256 of each file, written last
"""

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, TrainingRecord, read_provenance
from longmlm.artifacts.run import TrainState
from longmlm.errors import CheckpointError, FolderError
from longmlm.folders import MANIFEST, PARTIAL, partial_of, read_manifest, seal, verify, write_json
from longmlm.model.quiet import quiet_transformers
from longmlm.settings.held_out import HeldOut
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.schedule import is_constant
from longmlm.training.snapshot import Snapshot, Trained, put_back

NEEDED = (
    "config.json",
    "model*.safetensors",
    Provenance.FILE,
    "optimizer.pt",
    "rng-*.pt",
    "settings.toml",
    "state.json",
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is written beside the weights: tokenizer, settings as TOML, what the run depends on, the model's history.

    `precision` is what the run computes in: no (fp32) or bf16.
    """

    tokenizer: PreTrainedTokenizerBase
    settings: str
    depends_on: dict[str, Any]
    provenance: Provenance
    precision: str


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """The newest checkpoint that verified, and a line for each newer one that did not."""

    folder: Path | None
    skipped: tuple[str, ...]


def folder_of(run: Path, step: int) -> Path:
    """Returns the folder of the checkpoint after `step` updates."""
    return run / "checkpoints" / f"step-{step:08d}"


def write(run: Path, state: TrainState, model: PreTrainedModel, snapshot: Snapshot, record: RunRecord) -> Path:
    """Writes the checkpoint of this step in the main process and returns its folder; of `model` the settings are used.

    A checkpoint of the same step, which can only be an unsound one, is replaced. Raises CheckpointError when the disk
    does not take it; nothing is left of it then.
    """
    folder = folder_of(run, state.step)
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with quiet_transformers():
            model.save_pretrained(partial, state_dict=snapshot.weights)
        torch.save(snapshot.optimizer, partial / "optimizer.pt")
        for number, states in enumerate(snapshot.generators):
            torch.save(states, partial / f"rng-{number:05d}.pt")
        record.tokenizer.save_pretrained(partial)
        write_json(partial / "state.json", {"state": asdict(state), "depends_on": record.depends_on})
        artifact.write(partial / Provenance.FILE, replace(record.provenance, trained=_trained(state, record)))
        (partial / "settings.toml").write_text(record.settings, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        seal(partial, folder)
    except Exception as error:  # safetensors and torch raise types of their own when the disk is full
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {state.step} could not be written ({error}); the one before it is kept: free "
            "some space and give the same command again"
        ) from error
    return folder


def _trained(state: TrainState, record: RunRecord) -> TrainingRecord:
    rows, held_out, name = record.depends_on["rows"], record.depends_on["held_out"], rows_in(record.settings)
    masking = Masking(**held_out["masking"])
    return TrainingRecord(
        row_length=rows["settings"]["row_length"],
        steps=state.step,
        tokens=state.tokens,
        accuracy=state.accuracy if state.evaluated_at_step == state.step else None,
        precision=record.precision,
        held_out=HeldOut(max_rows=held_out["max_rows"], mask_seed=held_out["mask_seed"], masking=masking),
        rows=name if name.startswith("hf:") else None,
        rows_sha256=rows["sha256"],
        files_sha256=tuple(file["sha256"] for source in rows["sources"] for file in source.get("files", ())),
        dataset_commits=tuple(source["commit"] for source in rows["sources"] if "commit" in source),
    )


def rows_in(settings: str) -> str:
    """Returns the name of the rows in a run's settings: those on the hub at their commit; empty where there is none."""
    return tomllib.loads(settings).get("rows", "")


def check_sound(folder: Path) -> None:
    """Raises FolderError unless all that a checkpoint consists of is there, and every file as its manifest says."""
    try:
        listed = read_manifest(folder)["files"]
        if lacking := [needed for needed in NEEDED if not any(fnmatch(name, needed) for name in listed)]:
            raise FolderError(f"{folder / MANIFEST} does not list {lacking[0]}: the checkpoint is not whole")
        verify(folder)
    except OSError as error:
        raise FolderError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def newest_verified(run: Path) -> VerifiedCheckpoint:
    """Returns the newest sound checkpoint, no folder for a run that has no checkpoints.

    Raises CheckpointError when none is sound: a disk that is away for a minute must not make a run begin anew.
    """
    problems: dict[str, str] = {}
    for folder in reversed(folders(run)):
        try:
            check_sound(folder)
        except FolderError as error:
            problems[folder.name] = str(error)
        else:
            return VerifiedCheckpoint(
                folder, tuple(f"checkpoint {name} is skipped: {why}" for name, why in problems.items())
            )
    if problems:
        raise CheckpointError(
            f"{run} has no sound checkpoint ({'; '.join(f'{name}: {why}' for name, why in problems.items())}): make "
            "the disk readable or restore the files and give the same command again, name another run folder, or "
            "remove these folders to begin anew"
        )
    return VerifiedCheckpoint(None, ())


def check_still_newest(run: Path, resumed_from: Path | None) -> None:
    """Raises CheckpointError when another process has saved since `resumed_from` was chosen, and ended."""
    found = folders(run)
    moved = [folder for folder in found if resumed_from is None or folder > resumed_from]
    if (moved or resumed_from not in (None, *found)) and newest_verified(run).folder != resumed_from:
        raise CheckpointError(f"{run} was written to by another process just now: give the same command again")


def best(run: Path) -> Path:
    """Returns the sound checkpoint with the best held-out accuracy, the newest where none was evaluated.

    Raises CheckpointError for a run without a sound checkpoint.
    """
    newest = newest_verified(run).folder
    if newest is None:
        raise CheckpointError(f"{run} has no sound checkpoint: let pretrain.py save one first")
    ranked = sorted(evaluated(run), reverse=True)
    for _, folder in ranked:
        try:
            check_sound(folder)
        except FolderError:
            continue
        return folder
    return newest


def model_folder(name: str) -> Path | str:
    """Returns the best checkpoint of a run folder, and any other name as it is."""
    return best(Path(name)) if (Path(name) / "checkpoints").is_dir() else name


def read_state(folder: Path) -> tuple[TrainState, dict[str, Any]]:
    """Returns the state in a verified checkpoint, and what its run depends on."""
    content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return TrainState(**content["state"]), content["depends_on"]


def trained_precision(folder: Path) -> str | None:
    """Returns what a verified checkpoint was computed in, no (fp32) or bf16; None where it does not tell."""
    trained = read_provenance(folder).trained
    return trained.precision if trained else None


def resumable_state(folder: Path, record: RunRecord) -> TrainState:
    """Returns the state in a verified checkpoint; raises CheckpointError when the run now depends on something else.

    Only the number of steps may be another, while the learning rate has not depended on it. Of the precision counts
    what was computed in, not what was asked for.
    """
    state, before = read_state(folder)
    before, now = ({**content, "rows": content["rows"].get("sha256")} for content in (before, record.depends_on))
    before["recipe"], now["recipe"] = dict(before["recipe"]), dict(now["recipe"])
    if precision := trained_precision(folder):
        before["recipe"]["precision"], now["recipe"]["precision"] = precision, record.precision
    if all(is_constant(state.step, _recipe(content)) for content in (before["recipe"], now["recipe"])):
        now["recipe"]["num_steps"] = before["recipe"]["num_steps"]
    if changed := differences(before, now):
        raise CheckpointError(
            f"{folder.parent.parent} was begun otherwise: {', '.join(changed[:3])}; name another run folder, with "
            f"start.checkpoint = {str(folder)!r} to begin with these weights"
        )
    return state


def _recipe(content: dict[str, Any]) -> PretrainRecipe:
    recipe: dict[str, Any] = {**content, "masking": Masking(**content["masking"])}
    return PretrainRecipe(**recipe)


def restore(folder: Path, trained: Trained) -> None:
    """Puts optimizer and generators back to where the verified checkpoint in `folder` left them."""
    optimizer = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
    own = folder / f"rng-{trained.accelerator.process_index:05d}.pt"
    put_back(trained, optimizer, torch.load(own, weights_only=True) if own.is_file() else None)


def prune(run: Path, saved: Path, num_kept: int) -> list[Path]:
    """Removes all but the `num_kept` newest checkpoints up to the one just saved, and the best of them.

    Later ones were skipped as unsound on resume: they count for nothing, and are replaced when their step comes.
    Returns what was removed.
    """
    reached = [folder for folder in folders(run) if folder <= saved]
    ranked = sorted((pair for pair in evaluated(run) if pair[1] <= saved), reverse=True)
    kept = {*reached[-num_kept:], *(folder for _, folder in ranked[:1])}
    removed = [folder for folder in reached if folder not in kept]
    for folder in removed:
        doomed = partial_of(folder)
        folder.rename(doomed)
        shutil.rmtree(doomed)
    return removed


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns a phrase for each leaf in which two nested maps differ."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} was {old}, is {new}")
    return found


def folders(run: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, sound or not, the oldest first.

    Raises CheckpointError when the disk does not tell.
    """
    try:
        found = list((run / "checkpoints").iterdir())  # glob takes a folder that cannot be read for an empty one
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{run / 'checkpoints'} cannot be read ({error.strerror}): mend that and give the same command again"
        ) from error
    named = (folder for folder in found if folder.name.startswith("step-") and folder.suffix != PARTIAL)
    return sorted(folder for folder in named if folder.is_dir())


def evaluated(run: Path) -> Iterator[tuple[float, Path]]:
    """Yields held-out accuracy and folder of each checkpoint that was saved when it was measured."""
    for folder in folders(run):
        try:
            state, _ = read_state(folder)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if state.accuracy is not None and state.evaluated_at_step == state.step:
            yield state.accuracy, folder
