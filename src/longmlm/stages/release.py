"""The release stage: a trained model becomes a verified folder with a model card, published if asked."""

from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import MODEL, DownstreamComparison, DownstreamTrial
from longmlm.artifacts.provenance import read_provenance
from longmlm.config import read
from longmlm.errors import ReleaseError
from longmlm.folders import read_manifest, unlisted_note
from longmlm.hubs.licences import check_licence
from longmlm.hubs.publish import check_can_publish, publish
from longmlm.release.build import ReleaseSettings, open_source, write_release
from longmlm.release.task import TaskSource, check_task_recipe, write_task_release
from longmlm.runnable import check_has_rows, check_onnx_installed, trial_folder
from longmlm.runtime.trials import TRIAL
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.training.run_folder import model_or_best_checkpoint


def release(config: ReleaseConfig) -> None:
    """Releases a model, and publishes it if a target is set."""
    target = config.target() if config.publish else None
    settings = ReleaseSettings(config.recipe, config.card, Path(config.output), target)
    if config.recipe.onnx:
        check_onnx_installed()
    if target:
        check_can_publish(target)
    if trial := trial_folder(config.model):
        lines = release_task_model(config, trial, settings)
    else:
        lines = release_language_model(config, settings)
    if lines:
        print(*lines, f"released: {settings.output}", sep="\n")
    elif not target:
        print_already_released(settings.output)
    if target:
        address = publish(settings.output, target, f"Release of {config.card.title}")
        print(f"published: {address}", flush=True)


def release_language_model(config: ReleaseConfig, settings: ReleaseSettings) -> list[str]:
    """Writes a masked language model's release; returns what was verified, and nothing if it is already there."""
    model, rows = Path(model_or_best_checkpoint(config.model)), check_has_rows(config)
    source = open_source(model, rows, config.evaluation, config.recipe)
    if settings.target and settings.target.is_hub:
        check_licence(config.card, source.provenance)
    proof = write_release(source, settings)
    return proof.summary if proof else []


def release_task_model(config: ReleaseConfig, folder: Path, settings: ReleaseSettings) -> list[str]:
    """Writes the release of a downstream trial's model; returns what was verified, nothing if it is already there."""
    check_task_recipe(settings.recipe)
    for name in ("rows", "evaluation"):
        if getattr(config, name):
            raise ReleaseError(f"{name} is for masked language models: remove it to release a fine-tuned model")
    if settings.target and settings.target.is_hub:
        check_licence(settings.card, read_provenance(folder / MODEL))
    trial, trial_config = artifact.read(DownstreamTrial, folder / DownstreamTrial.FILE), folder / TRIAL
    comparison = comparison_of(folder)
    results = comparison.arms if comparison else ()
    is_earlier = folder.resolve().name.endswith(".earlier")  # a trial of other settings or documents
    if is_earlier or not any(
        (arm.arm, arm.values) == (trial.arm, trial.values) and trial.seed in arm.seeds for arm in results
    ):
        comparison = None  # it is about other trials
    source = TaskSource(folder / MODEL, read(DownstreamTrialConfig, [trial_config]), trial, comparison)
    return write_task_release(source, settings)


def print_already_released(folder: Path) -> None:
    """Prints that the folder holds this release, and what else it holds."""
    note = unlisted_note(folder, read_manifest(folder)["files"])
    print(f"{folder} already holds this release", *([f"not part of it: {note}"] if note else []), sep="\n")


def comparison_of(trial: Path) -> DownstreamComparison | None:
    """Returns the comparison in downstream/, of which this is a trial: None if it has not been written yet."""
    file = (trial / "../../../..").resolve() / DownstreamComparison.FILE
    return artifact.read(DownstreamComparison, file) if file.is_file() else None
