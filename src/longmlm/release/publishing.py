"""Publishing of releases and of a run's checkpoints."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from huggingface_hub.constants import REPOCARD_NAME

from longmlm.artifacts.provenance import read_provenance
from longmlm.data.rows import Rows
from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import MANIFEST, entry_of, new_folder, read_manifest, write_json
from longmlm.hubs.licences import check_licence
from longmlm.hubs.publish import check_publishable, publish
from longmlm.release.build import CARD_CODE, ReleaseSettings, ReleaseSource, build
from longmlm.release.dataset import link_or_copy
from longmlm.reports.card_code import Address, CardCode
from longmlm.reports.model_card import training_of
from longmlm.settings.publishing import Target
from longmlm.training.run_folder import verify_checkpoint


def publish_release(folder: Path, title: str, target: Target) -> None:
    """Publishes a released folder with a card that loads the model from there, and prints the address.

    The folder stays as it is.
    """
    check_publishable(folder)
    with addressed_copy(folder, target) as copy:
        print(f"published: {publish(copy, target, title)}", flush=True)


@contextmanager
def addressed_copy(folder: Path, target: Target) -> Iterator[Path]:
    """Yields a folder that is removed afterwards: the files of a release, with a card that loads it from the target."""
    manifest, (text, code) = read_manifest(folder), addressed_card(folder, target)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        copy = Path(scratch) / folder.name
        for name in manifest["files"]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if name != REPOCARD_NAME:
                link_or_copy(folder / name, copy / name)
        (copy / REPOCARD_NAME).write_text(text, encoding="utf-8")
        files = {**manifest["files"], REPOCARD_NAME: asdict(entry_of(copy / REPOCARD_NAME))}
        write_json(copy / MANIFEST, {**manifest, "files": files, CARD_CODE: asdict(code)})
        yield copy


def addressed_card(folder: Path, target: Target) -> tuple[str, CardCode]:
    """Returns a released folder's card with code that loads the model from the target, and that code."""
    code = _card_code(folder, read_manifest(folder))
    name = folder.name if target.hub == "storage" else target.name
    address, card = Address(name, target.hub, target.revision), folder / REPOCARD_NAME
    return code.readdressed(card.read_text(encoding="utf-8"), address), replace(code, address=address)


def _card_code(folder: Path, manifest: Mapping[str, Any]) -> CardCode:
    """Returns the code on the card of a released folder; raises ReleaseError for a folder of an earlier version."""
    import pydantic

    try:
        return pydantic.TypeAdapter(CardCode).validate_json(json.dumps(manifest.get(CARD_CODE)), strict=True)
    except pydantic.ValidationError:
        raise ReleaseError(
            f"{folder / MANIFEST} does not say what code the card has, so it is damaged or of an earlier version of "
            f"longmlm: remove {folder} and release the model again"
        ) from None


def publish_checkpoint(checkpoint: Path, rows: Rows, settings: ReleaseSettings, target: Target) -> None:
    """Releases one checkpoint of a run into a temporary folder and publishes it as the whole content of the branch."""
    title, output = f"{settings.card.title}, {step_label(checkpoint)}", settings.output
    source = ReleaseSource(checkpoint, read_provenance(checkpoint), rows)
    if target.is_hub:
        check_licence(settings.card, source.provenance)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        about: dict[str, object] = {}
        with new_folder(folder, about) as partial:
            build(source, replace(settings, card=replace(settings.card, title=title)), partial, about)
        publish_release(folder, title, replace(target, mirrors=True, tag=None, pull_request=False))


def publish_checkpoints(checkpoints: Sequence[Path], rows: Rows, settings: ReleaseSettings, target: Target) -> None:
    """Publishes each intact checkpoint that is not worse than its base model, as the revision step-N.

    On ModelScope a revision is a tag of the only branch, so the release itself must be published afterwards.
    """
    for checkpoint in checkpoints:
        if reason := reason_not_to_publish(checkpoint, settings.recipe.allow_unrecovered):
            print(f"{step_label(checkpoint)} is not published: {reason}")
        else:
            revision = f"step-{int(checkpoint.name.removeprefix('step-'))}"
            publish_checkpoint(checkpoint, rows, settings, replace(target, revision=revision))


def reason_not_to_publish(folder: Path, allow_unrecovered: bool) -> str | None:
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
        return "it was not evaluated at the step at which it was saved"
    if base_cut is None and provenance.extension:
        return "its run did not evaluate the base model, so it may be worse than that"
    if base_cut is not None and accuracy < base_cut:
        return f"its accuracy of {accuracy:.2f} % is below base_cut, {base_cut:.2f} %"
    return None


def step_label(checkpoint: Path) -> str:
    """Returns a checkpoint's step in words, such as step 1,000 for step-00001000."""
    return f"step {int(checkpoint.name.removeprefix('step-')):,}"
