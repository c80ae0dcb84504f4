"""Settings of the checkpoints stage: list, verify or export the checkpoints of a run."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig:
    """Lists or verifies the checkpoints of a run, or exports one of them."""

    __pydantic_config__ = {"extra": "forbid"}

    run: str
    """Run folder."""
    action: Literal["list", "verify", "export"] = "list"
    """list: list them; verify: compare every file with its manifest; export: write one as a stock model."""
    step: int | None = None
    """Step of the checkpoint to export; absent for the best."""
    output: str | None = None
    """Folder to export to."""

    def __post_init__(self) -> None:
        if (self.action == "export") != (self.output is not None):
            raise ValueError("export needs output, the folder to write; list and verify take none")
