"""Artifacts of the making of rows: the plan of the work, and the report of each finished slice."""

from dataclasses import dataclass
from typing import ClassVar

from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.rows import Contents, RowsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan(Artifact):
    """plan.json of unfinished rows: finished slices are kept for a run with the same plan and unchanged files.

    `slices_sha256` covers where the slices begin and end.
    """

    FILE: ClassVar[str] = "plan.json"

    plan: RowsPlan
    slices_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport(Artifact):
    """What one slice gave, written last: a slice that has a report is finished; one of another format is not.

    `is_fast` says whether a fast encoder made its tokens.
    """

    contents: Contents
    is_fast: bool
