"""Settings of the extend stage: how a model gets more positions."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from annotated_types import Ge

from longmlm.settings.masking import Seed
from longmlm.settings.pretrain import Positive, Probability
from longmlm.settings.tables import Unused

Initialisation = Literal["hierarchical", "tile", "fitted", "distilled"]
PositionMode = Literal["materialized", "generated"]
STARTS_FROM_FIT: tuple[Initialisation, ...] = ("fitted", "distilled")  # which draws random numbers
USED_BY: dict[str, tuple[Initialisation, ...]] = {  # settings that only some initialisations have
    "alpha": ("hierarchical",),
    "smooth_terms": STARTS_FROM_FIT,
    "distillation": ("distilled",),
}
SMOOTH_TERMS, NUM_GLOBAL_TOKENS = 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """How the lowest layers learn to reproduce, with full attention, the hidden states of windowed attention."""

    layers: Annotated[int, Ge(1)] | None = None
    """How many layers, counted from the lowest, are trained; by default, half of them, rounded up."""
    window: Annotated[int, Ge(1)] | None = None
    """How many tokens on each side a token of the teacher attends to; by default, half of the base model's positions,
    so that tokens that attend to each other never share a position."""
    num_tokens: Annotated[int, Ge(1)] = 300_000
    """Number of tokens to distil on."""
    batch_tokens: Annotated[int, Ge(1)] = 2048
    """Tokens per step, rounded to whole rows, at least one row."""
    learning_rate: Positive = 5e-4
    """Peak of the learning rate, which rises over the first tenth of the steps and falls to zero."""
    precision: Literal["auto", "no", "bf16"] = "auto"
    """Autocast precision: no (fp32), bf16, or auto (bf16 if the hardware supports it, else no)."""

    def layers_of(self, num_layers: int) -> int:
        """Returns how many of a model's layers are trained."""
        return self.layers or -(-num_layers // 2)

    def flop_ratio(self, num_layers: int) -> float:
        """Returns an upper bound of the FLOP per distillation token, relative to a training token.

        Passes through a layer: teacher forward 1, student forward 1 and backward 2, for each of the k distilled layers;
        3 for every layer in training, whose head is left out. With k = 3 of 6 layers, 12 / 18.
        """
        return 4 * self.layers_of(num_layers) / (3 * num_layers)

    def window_of(self, base_positions: int) -> int:
        """Returns the window of a teacher with so many trained positions."""
        return self.window or max(1, base_positions // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRecipe:
    """How the long model is made; changing it makes a different model."""

    num_positions: Annotated[int, Ge(1)] | None = None
    """Usable positions of the long model, counting special tokens but not the table's reserved rows. May be left out if
    add_tokens is set: the model then keeps its positions."""
    add_tokens: str | None = None
    """Text file with one term per line; each gets its own token, initialised as the mean of its former pieces."""
    initialisation: Initialisation = "fitted"
    """How the position table is extended (documentation: The method); fitted and distilled change trained rows.
    Default: fitted. In a pipeline: tile with attention_window, hierarchical with mode = generated, fitted with
    add_tokens, otherwise distilled."""
    alpha: Probability = 0.4
    """Only for hierarchical: weight of the block; the offset within it has weight 1 - alpha."""
    smooth_terms: Annotated[int, Ge(1)] = SMOOTH_TERMS
    """Only for fitted and distilled: number of cosines (DCT-II) in the smooth part of the table."""
    distillation: Distillation = Distillation()
    """Only for distilled: the teacher's window and layers, and how much they are trained."""
    mode: PositionMode = "materialized"
    """materialized: every row is trained; generated: only the base rows are, and the others follow from them."""
    attention_window: Annotated[int, Ge(1)] | None = None
    """How many tokens on each side a token attends to; by default, to all. Without local_layers, worthwhile for rows of
    4,096 tokens and more."""
    local_layers: Annotated[int, Ge(1)] | None = None
    """Only with attention_window: how many layers, counted from the lowest, attend within it; the others attend to the
    whole row. By default, all layers attend within it."""
    num_global_tokens: Annotated[int, Ge(0)] = NUM_GLOBAL_TOKENS
    """Only with attention_window: how many tokens at the start of a row attend to all tokens, and all to them. Default:
    1; in a pipeline, 0 if local_layers is set."""
    seed: Seed = 0
    """Random seed for the fit of positions, for the row order and masks of a distillation, and for a new head."""
    new_head: bool = False
    """Add an untrained MLM head to a model that has none."""

    def __post_init__(self) -> None:
        if self.alpha == 0.5:
            raise ValueError("alpha must not be 0.5, which makes rows (i, j) and (j, i) equal")
        for item in fields(self):
            users = USED_BY.get(item.name, (self.initialisation,))
            if self.initialisation not in users and getattr(self, item.name) != item.default:
                raise ValueError(
                    f"{item.name} has no effect with initialisation = {self.initialisation}, only with "
                    f"{' or '.join(users)}: remove it, or set initialisation"
                )
        if self.mode == "generated" and self.initialisation not in ("hierarchical", "tile"):
            raise ValueError(
                "mode = generated computes rows from the base rows: set initialisation to hierarchical or tile"
            )
        if self.initialisation == "distilled" and self.attention_window is not None:
            raise ValueError(
                "initialisation = distilled trains a model with full attention to imitate a windowed teacher: remove "
                "attention_window, or set distillation.window"
            )
        if self.attention_window is None and (self.num_global_tokens != NUM_GLOBAL_TOKENS or self.local_layers):
            name = "local_layers" if self.local_layers else "num_global_tokens"
            raise ValueError(
                f"{name} has no effect without attention_window, since all tokens attend to each other: remove it, or "
                "set attention_window"
            )
        if self.num_positions is None and self.add_tokens is None:
            raise ValueError("set num_positions, or add_tokens to extend the vocabulary alone")

    def without_effect(self) -> Iterator[Unused]:
        """Yields names of settings that have no effect, with the reason."""
        if not self.new_head and (self.num_positions is None or self.initialisation not in STARTS_FROM_FIT):
            drawn = " or ".join(STARTS_FROM_FIT)
            where = f"with initialisation = {self.initialisation}" if self.num_positions else "without num_positions"
            reason = f"{where}, since nothing is random (only initialisation = {drawn}, or new_head): remove it"
            yield ("seed",), reason
        if self.attention_window and self.num_positions and self.attention_window >= self.num_positions:
            where = f"with attention_window = {self.attention_window}, which covers all num_positions"
            yield ("num_global_tokens", "local_layers"), f"{where}: remove it, or lower attention_window"

    def keeps_positions(self, base_positions: int) -> bool:
        """Returns whether only tokens are added to a base model with so many positions."""
        return self.add_tokens is not None and self.num_positions in (None, base_positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendConfig:
    """Extends a model to more positions, with a position table computed from the trained one."""

    base: str
    """Folder or hub name (OWNER/NAME, ms:OWNER/NAME) of the pretrained model, or a run folder, whose best checkpoint is
    used."""
    output: str
    """Folder for the long model."""
    recipe: ExtendRecipe
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    rows: str | None = None
    """Only for initialisation = distilled: folder of packed rows, or hf:OWNER/NAME[@REVISION], to distil on."""

    def __post_init__(self) -> None:
        is_distilled = self.recipe.initialisation == "distilled"
        if self.rows is not None and not is_distilled:
            raise ValueError("rows has no effect without initialisation = distilled: remove it")
        if is_distilled and self.rows is None:
            raise ValueError("initialisation = distilled needs rows: name packed rows, or set another initialisation")
        if is_distilled and self.recipe.add_tokens is not None:
            raise ValueError(
                "initialisation = distilled cannot be combined with add_tokens, because the packed rows contain none "
                "of the new tokens: first add them, in an extension without num_positions"
            )
