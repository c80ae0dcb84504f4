"""Settings of the plan command: a pipeline, and the GPU to plan for."""

from dataclasses import dataclass

from longmlm.settings.pipeline import ResolvedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(ResolvedPipeline):
    """Reports tokens, epochs, memory, disk and hours of a pipeline before anything runs."""

    gpu: str | None = None
    """GPU to plan for, such as H100, "A100 40GB" or "RTX 4090"; by default this machine."""
