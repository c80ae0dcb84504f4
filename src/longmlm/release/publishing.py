"""Publishing of releases, and of single checkpoints of a run."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts.provenance import read_provenance
from longmlm.data.rows import Rows
from longmlm.folders import new_folder
from longmlm.hubs.publish import publish
from longmlm.hubs.target import Target
from longmlm.release.build import ReleaseSettings, ReleaseSource, build
from longmlm.release.candidates import refusal, step_of
from longmlm.release.released_folder import address_card


def publish_release(folder: Path, title: str, target: Target) -> None:
    """Publishes a released folder with a card that loads the model from there, and prints the address."""
    address_card(folder, target)
    print(f"published: {publish(folder, target, title)}", flush=True)


def publish_checkpoint(checkpoint: Path, rows: Rows, settings: ReleaseSettings, target: Target) -> None:
    """Releases one checkpoint of a run into a temporary folder and publishes it, as all that the branch holds."""
    title, output = f"{settings.card.title}, step {step_of(checkpoint):,}", settings.output
    source = ReleaseSource(checkpoint, read_provenance(checkpoint), rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        with new_folder(folder) as partial:
            build(source, replace(settings, card=replace(settings.card, title=title)), partial)
        publish_release(folder, title, replace(target, mirrors=True, tag=None, pull_request=False))


def publish_checkpoints(checkpoints: Sequence[Path], rows: Rows, settings: ReleaseSettings, target: Target) -> None:
    """Publishes each intact checkpoint that is not worse than its base model, as the revision step-N.

    On ModelScope a revision is a tag of the only branch, so the release itself must be published afterwards.
    """
    for checkpoint in checkpoints:
        if reason := refusal(checkpoint, settings.recipe.allow_unrecovered):
            print(f"step {step_of(checkpoint):,} is not published: {reason}")
        else:
            revision = f"step-{step_of(checkpoint)}"
            publish_checkpoint(checkpoint, rows, settings, replace(target, revision=revision))
