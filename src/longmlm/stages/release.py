"""The release stage: a trained model becomes a verified folder with a model card, published if asked."""

from pathlib import Path

from longmlm.folders import check_absent
from longmlm.hubs.publish import require
from longmlm.hubs.target import Repository
from longmlm.release.build import ReleaseSettings, held_out_rows, open_source, write_release
from longmlm.release.follow import follow
from longmlm.release.onnx_graph import check_onnx_installed
from longmlm.release.publishing import publish_checkpoint, publish_checkpoints, publish_release
from longmlm.settings.release import ReleaseConfig
from longmlm.training.run_folder import list_checkpoints, model_folder


def release(config: ReleaseConfig) -> None:
    """Releases a model, and publishes it, or follows a run in training and publishes each new best checkpoint."""
    settings = ReleaseSettings(config.recipe, config.card, Path(config.output))
    repository = Repository(
        config.hub_repository or "",
        public=config.public,
        revision=config.revision,
        tag=config.tag,
        pull_request=config.pull_request,
    )
    target = str(config.publish)
    if config.recipe.onnx:
        check_onnx_installed()
    if config.publish:
        require(target)
    if config.follow:
        rows, run = held_out_rows(config.rows), Path(config.follow)
        is_allowed = config.recipe.allow_unrecovered
        follow(run, is_allowed, lambda best: publish_checkpoint(best, rows, settings, target, repository))
        return
    if not config.publish:
        check_absent(settings.output)
    model = Path(model_folder(config.model))
    source = open_source(model, config.rows, config.evaluation, config.recipe.allow_unrecovered)
    proof = write_release(source, settings)
    if proof:
        print(*proof.summary, f"released: {settings.output}", sep="\n")
    if config.checkpoints:
        publish_checkpoints(list_checkpoints(Path(config.model)), source.rows, settings, target, repository)
    if config.publish:
        publish_release(settings.output, f"Release of {config.card.title}", target, repository)
