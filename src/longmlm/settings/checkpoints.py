"""Settings of the command that lists, verifies and exports the checkpoints of a run."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from longmlm.settings.pipeline import PipelineReader, ResolvedPipeline
from longmlm.settings.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig(PipelineReader):
    """Lists or verifies the checkpoints of a run, or exports one of them.

    For example: longmlm checkpoints out/mine/run --action verify
    """

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("run",)

    run: str
    """Run folder."""
    action: Literal["list", "verify", "export"] = "list"
    """list: list the checkpoints; verify: compare every file with its checksum; export: write one as a model folder."""
    step: int | None = None
    """Step of the checkpoint to export; by default the best checkpoint."""
    output: str | None = None
    """Folder to export to."""

    def __post_init__(self) -> None:
        if (self.action == "export") != (self.output is not None):
            raise ValueError("export needs output, the folder to write; list and verify take none")
        if self.step is not None and self.action != "export":
            raise ValueError(f"step is the checkpoint to export; {self.action} shows all of them: remove it")

    @staticmethod
    def of_pipeline(pipeline: ResolvedPipeline, own: Table) -> Table:  # noqa: ARG004
        """Returns what follows from a pipeline."""
        return {"run": pipeline.pretrain.run}
