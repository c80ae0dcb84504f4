"""Settings of an evaluation: the held-out rows and their frozen masks."""

from dataclasses import dataclass, field

from longmlm.settings.masking import Masking


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out rows, each with one mask that never changes."""

    max_rows: int | None = None
    """Number of rows to evaluate, spread evenly over the held-out split; by default all."""
    mask_seed: int = 1789
    """Seed of the frozen masks."""
    masking: Masking = field(default_factory=Masking)

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError("max_rows must be at least 1")
        if not 0 <= self.mask_seed < 2**63:
            raise ValueError("mask_seed must be at least 0 and below 2 ** 63")
