"""What is released, and what its card says: the settings of the release stage."""

from dataclasses import dataclass
from typing import Literal

LEAST_POSITIONS = 8
WeightType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseConfig:
    """A trained model to a folder that plain transformers loads, verified, with a model card."""

    __pydantic_config__ = {"extra": "forbid"}

    model: str
    """Run folder, whose best checkpoint is taken, or a checkpoint."""
    rows: str
    """Folder of packed rows: its held-out side serves to compare logits, its packing report goes into the card."""
    output: str
    """Folder to write."""
    title: str
    """Title of the model card."""
    license: str
    """Licence of the weights, an identifier as hubs use it, such as apache-2.0."""
    evaluation: str | None = None
    """Folder that pipelines.evaluate wrote for this model; needed for a long model."""
    description: str = ""
    """A paragraph for the card."""
    languages: tuple[str, ...] = ("en",)
    """ISO 639-1 codes of the text."""
    data: tuple[str, ...] = ()
    """A line for each corpus, with its licence."""
    num_positions: int | None = None
    """Positions of the released model; absent for as many as were trained. Only generated positions can have others."""
    weights: WeightType = "fp32"
    """Type of the stored weights."""
    allow_unrecovered: bool = False
    """Whether a long model may be released that tells fewer tokens than its base; the card then says so."""

    def __post_init__(self) -> None:
        if self.num_positions is not None and self.num_positions < LEAST_POSITIONS:
            raise ValueError(f"num_positions must be at least {LEAST_POSITIONS}")
