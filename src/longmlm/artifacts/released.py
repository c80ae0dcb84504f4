"""What a release was made from, as its manifest records it under `released_from`."""

import json
from dataclasses import asdict, dataclass

from longmlm.artifacts.provenance import ModelSource
from longmlm.settings.release import ReleaseCard, ReleaseRecipe

RELEASED_FROM = "released_from"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFrom:
    """The settings of a release, and what identifies its model, rows, base model and evaluation."""

    recipe: ReleaseRecipe
    card: ReleaseCard
    model_sha256: str
    rows_sha256: str
    base: ModelSource | None
    evaluation_sha256: str | None

    @property
    def content(self) -> dict[str, object]:
        """All of it, as it is read back from JSON."""
        return json.loads(json.dumps(asdict(self)))
