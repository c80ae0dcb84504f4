"""The release stage: a trained model becomes a verified folder with a model card, published if asked."""

from dataclasses import replace
from pathlib import Path

from longmlm.hubs.publish import check_can_publish
from longmlm.release.build import ReleaseSettings, held_out_rows, open_source, write_release
from longmlm.release.follow import follow
from longmlm.release.onnx_graph import check_onnx_installed
from longmlm.release.publishing import publish_checkpoint, publish_checkpoints, publish_release
from longmlm.settings.release import ReleaseConfig
from longmlm.training.run_folder import list_checkpoints, model_folder


def release(config: ReleaseConfig) -> None:
    """Releases a model, and publishes it, or follows a run in training and publishes each new best checkpoint."""
    settings = ReleaseSettings(config.recipe, config.card, Path(config.output))
    target = replace(config.target(), pull_request=config.pull_request) if config.publish else None
    if config.recipe.onnx:
        check_onnx_installed()
    if target:
        check_can_publish(target)
    if config.follow and target:
        rows, run, allow_unrecovered = held_out_rows(config.rows), Path(config.follow), config.recipe.allow_unrecovered
        follow(run, allow_unrecovered, lambda best: publish_checkpoint(best, rows, settings, target))
        return
    model = Path(model_folder(config.model))
    source = open_source(model, config.rows, config.evaluation, config.recipe.allow_unrecovered)
    proof = write_release(source, settings)
    if proof:
        print(*proof.summary, f"released: {settings.output}", sep="\n")
    elif not target:
        print(f"{settings.output} already holds this release")
    if config.checkpoints and target:
        publish_checkpoints(list_checkpoints(Path(config.model)), source.rows, settings, target)
    if target:
        publish_release(settings.output, f"Release of {config.card.title}", target)
