"""Artifacts of the making of rows: the plan of the work, stamps of the text, the report of each finished slice."""

from dataclasses import dataclass
from typing import ClassVar

from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.rows import Contents, RowsPlan, SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp(SourceFile):
    """A source file as it was when it was hashed."""

    bytes: int
    mtime_ns: int

    @property
    def content(self) -> tuple[str, int, int]:
        """All but its name."""
        return self.sha256, self.bytes, self.mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan(Artifact):
    """plan.json of unfinished rows: finished slices are kept for a run with the same plan and unchanged files.

    `slices_sha256` covers where the slices begin and end.
    """

    FILE: ClassVar[str] = "plan.json"

    plan: RowsPlan
    files: tuple[FileStamp, ...]
    slices_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStamps(Artifact):
    """sources.json beside the manifest of rows: a file of this size and time need not be hashed again.

    Without it, or if it is of another format, files are hashed.
    """

    FILE: ClassVar[str] = "sources.json"

    files: tuple[FileStamp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport(Artifact):
    """What one slice gave, written last: a slice that has a report is finished; one of another format is not.

    `is_fast` says whether a fast encoder made its tokens.
    """

    contents: Contents
    is_fast: bool
