"""Settings of masked-language modelling: which tokens are selected, and what replaces them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How many tokens of a row are selected for prediction, and what replaces them."""

    __pydantic_config__ = {"extra": "forbid"}

    selected_fraction: float = 0.15
    """Fraction of the maskable tokens of a row that is selected."""
    masked_share: float = 0.8
    """Share of the selected tokens that is replaced by the mask token."""
    random_share: float = 0.1
    """Share of the selected tokens that is replaced by a random token; the rest is left unchanged."""
    mask_patterns: int | None = None
    """Number of masks a row cycles through, one per epoch: absent for dynamic masking, 1 for static masking."""

    def __post_init__(self) -> None:
        if not 0 < self.selected_fraction < 1:
            raise ValueError("selected_fraction must lie between 0 and 1, both excluded")
        if min(self.masked_share, self.random_share) < 0 or self.masked_share + self.random_share > 1:
            raise ValueError("masked_share and random_share must not be negative, and their sum must not exceed 1")
        if self.mask_patterns is not None and self.mask_patterns < 1:
            raise ValueError("mask_patterns must be at least 1")
