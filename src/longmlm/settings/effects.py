"""Which settings have no effect beside the others: what a user sets is never ignored in silence, but refused."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

from longmlm.settings.extend import ExtendRecipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import Pipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Tracker
from longmlm.settings.publishing import Publishing
from longmlm.settings.tables import default_of, table_at, with_arrays

DRAWN = ("random", "fitted")  # initialisations that draw random numbers
W_AND_B = ("project", "entity", "name")


def settings_without_effect(config: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted name of each setting that was changed and has no effect, with the reason and what to do.

    A value that equals the default is not changed: it may be written out.
    """
    for names, reason in _rules(config):
        yield from ((f"{path}{name}", f"it has no effect {reason}") for name in names if _is_changed(config, name))
    for item in fields(config):
        for key, section in _sections(getattr(config, item.name)):
            yield from settings_without_effect(section, f"{path}{item.name}.{key}")


def base_keys_without_effect(base: Pipeline, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each base key for the sources of a corpus that none of them has, with the reason and what to do."""
    sources = with_arrays(table_at(given, "prepare", "recipe").get("sources"))
    sources = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    for name in ("language", "text_field") if sources and not base.corpus else ():
        value = getattr(base, name)
        if _is_changed(base, name) and not any(source.get(name, value) == value for source in sources):
            yield name, f"it has no effect, since every source has a {name} of its own: remove it"


def _sections(value: Any) -> Iterator[tuple[str, Any]]:
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    yield from ((f"{name}.", section) for name, section in named if is_dataclass(section))
    if is_dataclass(value):
        yield "", value


def _is_changed(config: Any, name: str) -> bool:
    *path, key = name.split(".")
    section = reduce(getattr, path, config)
    item = next((item for item in fields(section) if item.name == key), None)
    return item is not None and getattr(section, key) != default_of(item)


def _rules(config: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields names of settings that have no effect, with the reason."""
    match config:
        case HeldOut() | PretrainRecipe() | PretrainConfig() | Tracker():
            yield from _rules_of_training(config)
        case Publishing():
            if config.publish is not None and config.hub_scheme is None:
                yield ("public",), "with a publish that is no hub: remove it"
            if isinstance(config, PrepareConfig) and config.publish is None:
                yield ("card.title", "card.license", "card.data"), "without publish: remove it, or set publish"
        case ExtendRecipe():
            yield from _rules_of_extension(config)
        case _ if hasattr(config, "without_effect"):  # settings of a wing have rules of their own
            yield from config.without_effect()


def _rules_of_training(
    config: HeldOut | PretrainRecipe | PretrainConfig | Tracker,
) -> Iterator[tuple[tuple[str, ...], str]]:
    match config:
        case HeldOut():
            yield ("masking.mask_patterns",), "in held_out, whose rows have one mask each: remove it"
        case PretrainRecipe(schedule=schedule) if schedule != "constant-then-decay":
            yield ("decay_steps",), f"with schedule = {schedule}: remove it, or set schedule = constant-then-decay"
        case PretrainConfig(recipe=PretrainRecipe(precision="no")):
            yield ("runtime.peak_flops",), "with recipe.precision = no, since it is of bf16 and fp16: remove it"
        case Tracker(tracker=None):
            yield (*W_AND_B, "num_examples"), "without tracker: remove it, or set tracker"
        case Tracker(tracker="tensorboard"):
            yield W_AND_B, "with tracker = tensorboard, only with wandb: remove it, or set tracker = wandb"


def _rules_of_extension(recipe: ExtendRecipe) -> Iterator[tuple[tuple[str, ...], str]]:
    if not recipe.new_head and (recipe.num_positions is None or recipe.initialisation not in DRAWN):
        drawn = " and ".join(DRAWN)
        what = "num_positions" if recipe.num_positions is None else f"initialisation = {recipe.initialisation}"
        where = f"{'without' if recipe.num_positions is None else 'with'} {what}"
        yield ("seed",), f"{where}, since nothing is random (only initialisation = {drawn}, or new_head): remove it"
    if recipe.attention_window and recipe.num_positions and recipe.attention_window >= recipe.num_positions:
        where = f"with attention_window = {recipe.attention_window}"
        yield ("num_global_tokens",), f"{where}, which covers all num_positions: remove it, or lower attention_window"
