"""Targets of uploads and downloads, and the settings with which a stage publishes models or rows to one."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from longmlm.settings.secrets import without_secret

Hub = Literal["hf", "ms", "storage"]
Kind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
TARGET = re.compile(
    r"(?P<hub>hf|ms):(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?"
    r"|folder:(?P<path>.+)|(?P<url>[a-z][a-z0-9+]*://.+)"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A repository OWNER/NAME on a hub, or a path or URL of storage, and how to publish there.

    `revision` is a branch on Hugging Face. Publishing deletes other files that match `owns`.
    """

    hub: Hub
    name: str
    revision: str | None = None
    kind: Kind = "model"
    public: bool = False
    tag: str | None = None
    owns: tuple[str, ...] = ()

    @property
    def is_hub(self) -> bool:
        """Whether others find models there: on a hub, and not in a folder or other storage."""
        return self.hub != "storage"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit."""
        return COMMIT.fullmatch(self.revision or "") is not None


def parse_target(text: str, kind: Kind = "model") -> Target:
    """Returns the target that hf:OWNER/NAME[@REVISION], ms:OWNER/NAME, folder:PATH or a URL names.

    Raises ValueError for any other text.
    """
    parts = TARGET.fullmatch(text)
    if parts is None:
        forms = "hf:OWNER/NAME, hf:OWNER/NAME@REVISION, ms:OWNER/NAME, folder:PATH or a URL"
        raise ValueError(f"{without_secret(text)!r} is not {forms}")
    if parts["hub"] is None:
        return Target("storage", parts["path"] or parts["url"], kind=kind)
    return Target("hf" if parts["hub"] == "hf" else "ms", parts["repository"], parts["revision"], kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Where the result of a stage is published, if it is."""

    publish: str | None = None
    """Target: hf:OWNER/NAME, ms:OWNER/NAME (ModelScope), folder:PATH or an fsspec URL, such as s3://bucket/name.

    A password or key in a URL is used, and no file is written with it.
    """
    public: bool = False
    """Create the repository as a public one; otherwise it is private, and an existing public one is refused."""
    revision: str | None = None
    """Branch to publish to, created if missing; by default the repository's default branch."""
    tag: str | None = None
    """Tag to set on the published commit."""

    def __post_init__(self) -> None:
        target = TARGET.fullmatch(self.publish or "")
        if self.publish is not None and target is None:
            given = without_secret(str(self.publish))
            raise ValueError(f"publish must be hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or a URL: {given!r}")
        if target and target["revision"]:
            raise ValueError(f"publish takes no @REVISION: set revision = {target['revision']!r} instead")
        if self.publish is None and self.public:
            raise ValueError("public needs publish")
        if self.hub_scheme is None and (self.revision or self.tag):
            raise ValueError("revision and tag need publish on a hub")
        if self.hub_scheme == "ms" and self.revision:
            raise ValueError("ModelScope's client cannot create branches: set tag instead of revision")

    @property
    def hub_scheme(self) -> str | None:
        """The hub in `publish`, hf or ms; None for a folder, a URL or nothing."""
        target = TARGET.fullmatch(self.publish or "")
        return target and target["hub"]

    def target(self, kind: Kind = "model") -> Target:
        """Returns the target that `publish`, which must be set, and the other settings describe."""
        target = parse_target(str(self.publish), kind)
        return replace(target, public=self.public, revision=self.revision, tag=self.tag)
