"""Settings of publishing, for models and for rows: where to, who may see it, under which branch or tag."""

import re
from dataclasses import dataclass

TARGET = re.compile(r"(hf|ms):[\w.-]+/[\w.-]+|folder:.+|[a-z][a-z0-9+]*://.+")
HUBS = ("hf", "ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Where the result of a stage is published, if anywhere."""

    publish: str | None = None
    """Where to publish: hf:OWNER/NAME, ms:OWNER/NAME (ModelScope), folder:PATH or an fsspec URL, such as s3://bucket/name."""
    public: bool = False
    """Whether a repository that is created is public. If false, an existing public repository is refused."""
    revision: str | None = None
    """Branch to publish to, created if missing; absent for the default branch."""
    tag: str | None = None
    """Tag to set on what was published."""

    def __post_init__(self) -> None:
        if self.publish is not None and not TARGET.fullmatch(self.publish):
            raise ValueError(f"publish is no hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or URL: {self.publish!r}")
        if self.publish is None and self.public:
            raise ValueError("public needs publish")
        if self.hub_repository is None and (self.revision or self.tag):
            raise ValueError("revision and tag need publish on a hub")
        if self.hub_scheme == "ms" and self.revision:
            raise ValueError("ModelScope takes no new branches from a client: set tag instead of revision")

    @property
    def hub_scheme(self) -> str | None:
        """Hub that `publish` names, hf or ms; None for a folder, a URL or nothing."""
        scheme = (self.publish or "").partition(":")[0]
        return scheme if scheme in HUBS else None

    @property
    def hub_repository(self) -> str | None:
        """OWNER/NAME if `publish` names a hub."""
        return (self.publish or "").partition(":")[2] if self.hub_scheme else None
