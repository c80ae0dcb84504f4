"""The release stage: a trained model becomes a verified folder with a model card, published if asked."""

from dataclasses import replace
from pathlib import Path

from longmlm.artifacts.fine_tuned import MODEL, fine_tuned_folder
from longmlm.artifacts.provenance import read_provenance
from longmlm.errors import ReleaseError
from longmlm.folders import read_manifest, unlisted_note
from longmlm.hubs.licences import check_licence
from longmlm.hubs.publish import check_can_publish
from longmlm.release.build import ReleaseSettings, held_out_rows, open_source, write_release
from longmlm.release.follow import follow
from longmlm.release.publishing import publish_checkpoint, publish_checkpoints, publish_release
from longmlm.release.task import check_task_recipe, write_task_release
from longmlm.runnable import check_has_rows, check_onnx_installed
from longmlm.settings.publishing import Target
from longmlm.settings.release import ReleaseConfig
from longmlm.training.run_folder import CHECKPOINTS, list_checkpoints, model_or_best_checkpoint


def release(config: ReleaseConfig) -> None:
    """Releases a model, and publishes it, or follows a run in training and publishes each new best checkpoint."""
    settings = ReleaseSettings(config.recipe, config.card, Path(config.output))
    target = replace(config.target(), pull_request=config.pull_request) if config.publish else None
    if config.recipe.onnx:
        check_onnx_installed()
    if target:
        check_can_publish(target)
    if config.follow and target and config.rows:
        rows, allow_unrecovered = held_out_rows(config.rows), config.recipe.allow_unrecovered
        follow(Path(config.follow), allow_unrecovered, lambda best: publish_checkpoint(best, rows, settings, target))
        return
    if tuned := fine_tuned_folder(config.model):
        release_task_model(config, tuned, settings, target)
        return
    rows, allow_unrecovered = check_has_rows(config), config.recipe.allow_unrecovered
    source = open_source(model_to_release(config), rows, config.evaluation, allow_unrecovered)
    if target and target.is_hub:
        check_licence(config.card, source.provenance)
    proof = write_release(source, settings)
    if proof:
        print(*proof.summary, f"released: {settings.output}", sep="\n")
    elif not target:
        print_already_released(settings.output)
    if config.checkpoints and target:
        publish_checkpoints(list_checkpoints(Path(config.model)), source.rows, settings, target)
    if target:
        publish_release(settings.output, f"Release of {config.card.title}", target)


def model_to_release(config: ReleaseConfig) -> Path:
    """Returns the model, of a run its best checkpoint; raises ReleaseError for the checkpoints of what is no run."""
    if config.checkpoints and not (Path(config.model) / CHECKPOINTS).is_dir():
        raise ReleaseError(f"checkpoints = true is for the checkpoints of a run, and {config.model} is none: remove it")
    return Path(model_or_best_checkpoint(config.model))


def release_task_model(config: ReleaseConfig, folder: Path, settings: ReleaseSettings, target: Target | None) -> None:
    """Releases a fine-tuned model, such as a downstream trial's, and publishes it."""
    check_task_recipe(settings.recipe)
    for name in ("rows", "evaluation", "checkpoints", "follow"):
        if getattr(config, name):
            raise ReleaseError(f"{name} is for masked language models: remove it to release a fine-tuned model")
    if target and target.is_hub:
        check_licence(settings.card, read_provenance(folder / MODEL))
    lines = write_task_release(folder, settings)
    if lines:
        print(*lines, f"released: {settings.output}", sep="\n")
    elif not target:
        print_already_released(settings.output)
    if target:
        publish_release(settings.output, f"Release of {config.card.title}", target)


def print_already_released(folder: Path) -> None:
    """Prints that the folder holds this release, and what else it holds."""
    note = unlisted_note(folder, read_manifest(folder)["files"])
    print(f"{folder} already holds this release", *([f"not part of it: {note}"] if note else []), sep="\n")
