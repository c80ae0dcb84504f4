"""Settings for publishing models and rows: the target, its visibility, its branch and tag."""

import re
from dataclasses import dataclass

TARGET = re.compile(
    r"(?P<hub>hf|ms):(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?"
    r"|folder:(?P<path>.+)|(?P<url>[a-z][a-z0-9+]*://.+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Where the result of a stage is published, if it is."""

    publish: str | None = None
    """Target: hf:OWNER/NAME, ms:OWNER/NAME (ModelScope), folder:PATH or an fsspec URL, such as s3://bucket/name."""
    public: bool = False
    """Create the repository as a public one; otherwise it is private, and an existing public one is refused."""
    revision: str | None = None
    """Branch to publish to, created if missing; by default the repository's default branch."""
    tag: str | None = None
    """Tag to set on the published commit."""

    def __post_init__(self) -> None:
        target = TARGET.fullmatch(self.publish or "")
        if self.publish is not None and target is None:
            raise ValueError(f"publish must be hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or a URL: {self.publish!r}")
        if target and target["revision"]:
            raise ValueError(f"publish takes no @REVISION: set revision = {target['revision']!r} instead")
        if self.publish is None and self.public:
            raise ValueError("public needs publish")
        if self.hub_repository is None and (self.revision or self.tag):
            raise ValueError("revision and tag need publish on a hub")
        if self.hub_scheme == "ms" and self.revision:
            raise ValueError("ModelScope's client cannot create branches: set tag instead of revision")

    @property
    def hub_scheme(self) -> str | None:
        """The hub in `publish`, hf or ms; None for a folder, a URL or nothing."""
        target = TARGET.fullmatch(self.publish or "")
        return target and target["hub"]

    @property
    def hub_repository(self) -> str | None:
        """OWNER/NAME if `publish` names a hub, else None."""
        target = TARGET.fullmatch(self.publish or "")
        return target and target["repository"]
