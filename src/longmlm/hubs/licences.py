"""The licence of a release: the one that the settings name, or that of the base model's card."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCard

from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.errors import ModelError, ModelNotFoundError, ModelUnavailableError, ReleaseError, UnavailableError
from longmlm.hubs.models import model_card_of
from longmlm.progress import quiet_libraries
from longmlm.settings.release import ReleaseCard


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence by its identifier; one that hubs call `other` also has a name and a link. No identifier: not known."""

    identifier: str | None = None
    name: str | None = None
    link: str | None = None
    is_of_base: bool = False


def licence_of(identifier: str | None, provenance: Provenance) -> Licence:
    """Returns the licence of that identifier, else that in the base model's card, else one without identifier.

    Raises UnavailableError if the hub does not respond.
    """
    if identifier is not None:
        return Licence(identifier)
    source = provenance.source
    try:
        data = _card_metadata(source) if source else {}
    except ModelError as error:
        kind = UnavailableError if isinstance(error, ModelUnavailableError) else ReleaseError
        raise kind(f"{error}; or state the licence of the base model as card.license") from error
    if not isinstance(data.get("license"), str):
        return Licence()
    name, link = (data.get(key) if isinstance(data.get(key), str) else None for key in ("license_name", "license_link"))
    return Licence(_identifier(data["license"]), name, link, is_of_base=True)


def check_licence(card: ReleaseCard, provenance: Provenance) -> None:
    """Raises ReleaseError if no licence is known, with which a hub's users could not use the model."""
    if licence_of(card.license, provenance).identifier is None:
        source = provenance.source
        reason = f"the licence of the base model {source.name} is not known" if source else "there is no base model"
        raise ReleaseError(
            f"a model on a hub needs a licence, and {reason}: set card.license, in a pipeline file as the lines "
            '[release.card] and license = "apache-2.0", with the licence of your model'
        )


def _identifier(licence: str) -> str:
    """Returns the identifier of a licence; cards on ModelScope may have its full name instead."""
    return {"apache license 2.0": "apache-2.0", "mit license": "mit"}.get(licence.lower(), licence)


def _card_metadata(source: ModelSource) -> dict[str, Any]:  # a card may contain anything
    try:
        content = model_card_of(source.name, source.revision)
    except ModelNotFoundError:
        return {}
    with suppress(Exception), quiet_libraries():  # a malformed card names no licence; libraries raise their own types
        return ModelCard(content, ignore_metadata_errors=True).data.to_dict()
    return {}
