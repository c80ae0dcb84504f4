"""Settings of what is predicted: how many tokens, in which units, what replaces them; pairs; the held-out rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Interval

UNUSED = "unused"  # metadata of a section: its settings that have no effect there
PairKind = Literal["nsp", "sop"]
MaskingUnit = Literal["token", "word", "span"]
Share = Annotated[float, Interval(ge=0, le=1)]
Seed = Annotated[int, Interval(ge=0, lt=2**63)]  # what every generator accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How many tokens of a row are selected for prediction, and what replaces them."""

    selected_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.15
    """Fraction of a row's maskable tokens to select."""
    masked_share: Share = 0.8
    """Share of the selected tokens to replace by the mask token."""
    random_share: Share = 0.1
    """Share of the selected tokens to replace by a random token; the rest stay unchanged."""
    mask_patterns: Annotated[int, Ge(1)] | None = None
    """Number of masks that a row cycles through, one per epoch; 1 is static masking, the default is dynamic masking.
    Pairs of segments are drawn anew in each epoch all the same."""
    unit: MaskingUnit = "token"
    """What is selected at random: single tokens, whole words, or spans of 1 to 10 words (3.8 on average), of which all
    tokens are replaced in the same way. Evaluation always selects single tokens."""

    def __post_init__(self) -> None:
        if self.masked_share + self.random_share > 1:
            raise ValueError("the sum of masked_share and random_share must not exceed 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """A second objective, absent by default: whether two segments follow each other.

    It needs rows prepared with pairs, and a BERT or ALBERT, whose pooler and pair head are then trained too.
    """

    kind: PairKind
    """nsp: in half of the pairs, the second segment is from another document (BERT); sop: in half of them, the segments
    have changed places (ALBERT)."""


def pair_kind(pairs: Pairs | None) -> PairKind | None:
    """Returns the kind of pairs; None without pairs."""
    return None if pairs is None else pairs.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out rows, each with one mask that never changes."""

    max_rows: Annotated[int, Ge(1)] | None = None
    """Number of rows to evaluate, spread evenly over the held-out split; by default all. In a pipeline, 200
    in training and 1,000 in evaluate by default."""
    mask_seed: Seed = 1789
    """Seed of the frozen masks."""
    masking: Masking = field(default_factory=Masking, metadata={UNUSED: ("mask_patterns", "unit")})

    def __post_init__(self) -> None:
        if self.masking.unit != "token":
            raise ValueError(
                f'masking.unit is "{self.masking.unit}" in held_out, but evaluation masks single tokens, so that '
                "models that were trained with different units can be compared: remove it"
            )

    def without_effect(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields names of settings that have no effect, with the reason."""
        yield ("masking.mask_patterns",), "in held_out, whose rows have one mask each: remove it"
