"""Targets of uploads and downloads, the settings of what a stage publishes, and addresses without their passwords.

https://me:password@host/rows?key=1 is written as https://***@host/rows?***: it is used, and written to no file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from longmlm.settings.tables import Unused

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
        raise ValueError(f"{redacted_address(text)!r} is not {forms}")
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
            given = redacted_address(str(self.publish))
            raise ValueError(f"publish must be hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or a URL: {given!r}")
        if target and target["revision"]:
            raise ValueError(f"publish takes no @REVISION: set revision = {target['revision']!r} instead")
        if self.publish is None and self.public:
            raise ValueError("public needs publish")
        if self.hub_scheme is None and (self.revision or self.tag):
            raise ValueError("revision and tag need publish on a hub")
        if self.hub_scheme == "ms" and self.revision:
            raise ValueError("ModelScope's client cannot create branches: set tag instead of revision")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if self.publish is not None and self.hub_scheme is None:
            yield ("public",), "with a publish that is no hub: remove it"

    @property
    def hub_scheme(self) -> str | None:
        """The hub in `publish`, hf or ms; None for a folder, a URL or nothing."""
        target = TARGET.fullmatch(self.publish or "")
        return target and target["hub"]

    def target(self, kind: Kind = "model") -> Target:
        """Returns the target that `publish`, which must be set, and the other settings describe."""
        target = parse_target(str(self.publish), kind)
        return replace(target, public=self.public, revision=self.revision, tag=self.tag)


HIDDEN = "***"
NO_ADDRESS = ("hf:", "ms:", "folder:")
USERS_ARE_PUBLIC = ("sftp", "ssh", "abfs", "abfss", "hdfs")  # elsewhere, a user without a password may be a token
PASSWORD = re.compile(r"[^/@:]*:(?!\d+(?:[/?#]|$)).*@", re.DOTALL)  # a port has no @ behind it
USER = re.compile(r"[^/@?#]*@")
QUERY = re.compile(r"(?<=[?#]).+", re.DOTALL)


def redacted_address(address: str) -> str:
    """Returns an address with *** in place of user and password, and of the query, which may hold a signature."""
    scheme, is_url, rest = address.partition("://")
    if not is_url:  # no address, or a mistyped one
        is_target = "@" not in address or address.startswith(NO_ADDRESS)
        return address if is_target else f"{HIDDEN}@{address.rpartition('@')[2]}"
    secret = PASSWORD.match(rest) or (USER.match(rest) if scheme not in USERS_ARE_PUBLIC else None)
    rest = f"{HIDDEN}@{rest[secret.end() :]}" if secret else rest
    return f"{scheme}://{QUERY.sub(HIDDEN, rest)}"


def redacted_settings(value: Any) -> Any:  # of any type that settings have
    """Returns settings, in tables and lists, in which every `publish` is without its secret."""
    if isinstance(value, Mapping):
        return {
            key: redacted_address(item) if key == "publish" and isinstance(item, str) else redacted_settings(item)
            for key, item in value.items()
        }
    return [redacted_settings(item) for item in value] if isinstance(value, list | tuple) else value
