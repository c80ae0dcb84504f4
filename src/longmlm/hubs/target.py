"""Target of a transfer: a repository on a hub, a folder, or storage behind a URL."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from longmlm.settings.publishing import TARGET, Publishing

Hub = Literal["hf", "ms", "storage"]
Kind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Target:
    """A repository OWNER/NAME on a hub, or a path or URL of storage, and how to publish there.

    `revision` is a branch on Hugging Face, a tag on ModelScope and a subfolder of storage. With `mirrors`, publishing
    deletes every other file of the revision; otherwise only other files that match `owns`.
    """

    hub: Hub
    name: str
    revision: str | None = None
    kind: Kind = "model"
    public: bool = False
    tag: str | None = None
    pull_request: bool = False
    mirrors: bool = False
    owns: tuple[str, ...] = ()

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
        raise ValueError(f"{text!r} is not hf:OWNER/NAME, hf:OWNER/NAME@REVISION, ms:OWNER/NAME, folder:PATH or a URL")
    if parts["hub"] is None:
        return Target("storage", parts["path"] or parts["url"], kind=kind)
    return Target("hf" if parts["hub"] == "hf" else "ms", parts["repository"], parts["revision"], kind)


def publishing_target(settings: Publishing, kind: Kind = "model") -> Target:
    """Returns the target that the settings of a stage name in `publish`."""
    target = parse_target(str(settings.publish), kind)
    return replace(target, public=settings.public, revision=settings.revision, tag=settings.tag)
