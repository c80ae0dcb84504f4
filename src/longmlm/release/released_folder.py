"""Released folder: which release it holds, and how its card loads the model."""

from pathlib import Path

from longmlm.errors import FolderError
from longmlm.folders import MANIFEST, read_manifest, sha256_of, verify, write_json
from longmlm.hubs.target import Target
from longmlm.reports.model_card import addressed

CARD = "README.md"


def address_card(folder: Path, target: Target) -> None:
    """Makes the card's code load the model from the hub that it is published to, otherwise from a folder."""
    card = folder / CARD
    hub, name = ("", folder.name) if target.hub == "storage" else (target.hub, target.name)
    card.write_text(addressed(card.read_text(encoding="utf-8"), hub, name, target.revision), encoding="utf-8")
    manifest = read_manifest(folder)
    manifest["files"][CARD] = {"bytes": card.stat().st_size, "sha256": sha256_of(card)}
    write_json(folder / MANIFEST, manifest)


def check_released_from(folder: Path, released_from: str) -> None:
    """Raises FolderError if the folder is damaged or holds a release with another fingerprint."""
    if verify(folder).get("released_from") != released_from:
        raise FolderError(
            f"{folder} already exists with a release of another model or other settings: remove it or choose another "
            "folder"
        )
