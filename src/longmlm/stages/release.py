"""The release stage: a trained model becomes a verified folder with a model card, published if asked."""

from pathlib import Path

from longmlm.artifacts.fine_tuned import fine_tuned_folder
from longmlm.errors import ReleaseError
from longmlm.folders import read_manifest, unlisted_note
from longmlm.hubs.publish import publish
from longmlm.pipeline_needs import check_has_rows
from longmlm.release.build import ReleaseSettings, write_release
from longmlm.release.task import check_task_recipe, write_task_release
from longmlm.settings.release import ReleaseConfig
from longmlm.training.run_folder import model_or_best_checkpoint


def release(config: ReleaseConfig) -> None:
    """Releases a model, and publishes it if a target is set."""
    target = config.target() if config.publish else None
    settings = ReleaseSettings(config.recipe, config.card, Path(config.output), target)
    if tuned := fine_tuned_folder(config.model):
        lines = release_task_model(config, tuned, settings)
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
    return write_release(model, rows, config.evaluation, settings)


def release_task_model(config: ReleaseConfig, folder: Path, settings: ReleaseSettings) -> list[str]:
    """Writes the release of a fine-tuned model; returns what was verified, nothing if it is already there."""
    check_task_recipe(settings.recipe)
    for name in ("rows", "evaluation"):
        if getattr(config, name):
            raise ReleaseError(f"{name} is for masked language models: remove it to release a fine-tuned model")
    return write_task_release(folder, settings)


def print_already_released(folder: Path) -> None:
    """Prints that the folder holds this release, and what else it holds."""
    note = unlisted_note(folder, read_manifest(folder)["files"])
    print(f"{folder} already holds this release", *([f"not part of it: {note}"] if note else []), sep="\n")
