"""The extension that the settings ask for, checked against a base model's config and longmlm.json. Imports no torch."""

from dataclasses import fields
from typing import Any

from longmlm.artifacts.provenance import Extension, ModelSource, Provenance
from longmlm.errors import PositionsError
from longmlm.model.families import check_has_position_table, check_num_positions
from longmlm.settings.extend import USED_BY, ExtendRecipe

POSITION_SETTINGS = ("mode", "attention_window", *USED_BY, "initialisation")  # a pipeline derives the last one


def planned_extension(
    recipe: ExtendRecipe, base: ModelSource, provenance: Provenance, config: Any, base_positions: int
) -> Extension | None:
    """Returns the extension of a base model with this provenance and config; None if it keeps its positions.

    Raises PositionsError for a number of positions or a window that the model does not allow, or if the base model was
    itself extended and not trained since; ModelError for a model that cannot be extended.
    """
    check_extendable(provenance, base.name)
    extension = _extension_of(recipe, base, base_positions)
    check_keeps_window(provenance, extension, base.name)
    if extension is not None:
        check_has_position_table(config, base_positions, base.name)
        check_num_positions(base_positions, extension.num_positions)
    return extension


def _extension_of(recipe: ExtendRecipe, base: ModelSource, base_positions: int) -> Extension | None:
    """Returns how the positions are extended; None if only tokens are added.

    Raises PositionsError for settings of new positions if there are none.
    """
    if not recipe.keeps_positions(base_positions):
        return Extension.of(recipe, base, base_positions)
    defaults = {item.name: item.default for item in fields(recipe)}
    for name in POSITION_SETTINGS:
        if getattr(recipe, name) != defaults[name]:
            raise PositionsError(f"{name} is for new positions, but the model keeps its {base_positions}: remove it")
    return None


def check_extendable(provenance: Provenance, name: str) -> None:
    """Raises PositionsError for a long model that was not trained at its length: its new rows are untrained."""
    extension, trained = provenance.extension, provenance.trained
    if extension is None or (trained and trained.steps and trained.row_length == extension.num_positions):
        return
    raise PositionsError(
        f"{name} was extended to {extension.num_positions} positions and has not been trained at that length: extend "
        f"{extension.base.name} to the length you want, or pretrain this model first"
    )


def check_keeps_window(base: Provenance, extension: Extension | None, name: str) -> None:
    """Raises PositionsError if the base model attends within a window and the extension sets none."""
    before = base.extension
    if before and before.attention and (extension is None or extension.attention is None):
        raise PositionsError(
            f"{name} was trained with a window of {before.attention}: set num_positions and attention_window; "
            "a window as large as num_positions is full attention"
        )
