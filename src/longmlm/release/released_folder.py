"""A released folder: which release it holds, and the address in its card."""

from pathlib import Path

from longmlm.errors import FolderError
from longmlm.folders import MANIFEST, read_manifest, sha256_of, verify, write_json
from longmlm.reports.model_card import addressed
from longmlm.settings.publishing import HUBS

CARD = "README.md"


def address(folder: Path, target: str, revision: str | None = None) -> None:
    """Lets the card of a whole folder load the model from where it is published, from elsewhere than a hub by path."""
    hub, _, name = target.partition(":")
    card = folder / CARD
    where = (hub, name) if hub in HUBS else ("", folder.name)
    card.write_text(addressed(card.read_text(encoding="utf-8"), *where, revision), encoding="utf-8")
    manifest = read_manifest(folder)
    manifest["files"][CARD] = {"bytes": card.stat().st_size, "sha256": sha256_of(card)}
    write_json(folder / MANIFEST, manifest)


def check_released_from(folder: Path, released_from: str) -> None:
    """Raises FolderError for a folder that is damaged, or holds another release than that of this fingerprint."""
    if verify(folder).get("released_from") != released_from:
        raise FolderError(
            f"{folder} exists already, and was not released from this model with these settings: remove it or name "
            "another folder"
        )
