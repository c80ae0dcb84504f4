"""Publishing target: a repository on a hub, with branch, tag or pull request."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["model", "dataset"]


@dataclass(frozen=True, slots=True)
class Repository:
    """Where on a hub a folder goes: OWNER/NAME, who may see it, a branch, a tag to set, or a pull request to open.

    A branch that `mirrors` the folder holds nothing else, one that does not still nothing else that matches `owns`.
    """

    name: str
    public: bool = False
    revision: str | None = None
    tag: str | None = None
    pull_request: bool = False
    mirrors: bool = False
    owns: tuple[str, ...] = ()
    kind: Kind = "model"
