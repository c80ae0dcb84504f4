"""Which settings have no effect beside the others: what a user sets is never ignored in silence, but refused."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

from longmlm.settings.downstream import DownstreamConfig, LabelledData, LabelledTask
from longmlm.settings.extend import ExtendRecipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import Pipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Tracker
from longmlm.settings.publishing import Publishing
from longmlm.settings.tables import default_of, table_at, with_arrays

DRAWN = ("random", "fitted")  # initialisations that draw random numbers
W_AND_B = ("project", "entity", "name")
RATES, FROZEN_RATES = ("learning_rate", "num_epochs"), ("frozen_learning_rate", "frozen_num_epochs")
OF_TRAINING = (
    *("recipe.documents_per_step", "recipe.warmup_fraction", "recipe.patience", "recipe.weight_decay"),
    *("recipe.dropout", "runtime.rows_per_micro_batch", "runtime.activation_checkpointing", "runtime.log_every_steps"),
    *("tracking.tracker", "keep_weights"),
)
OF_MODELS = ("recipe.precision", "runtime.rows_per_evaluation_batch", "runtime.num_threads", "runtime.hang_seconds")


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
        case LabelledData() | LabelledTask() | DownstreamConfig():
            yield from _rules_of_task(config)


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


def _rules_of_task(config: LabelledData | LabelledTask | DownstreamConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    match config:
        case LabelledData():
            if config.dataset is None:
                yield ("train_split",), "without dataset: remove it"
            if config.tags_field is not None:
                yield ("spans_field", "span_unit"), "with tags_field, which replaces spans: remove it, or tags_field"
        case LabelledTask():
            yield from _rules_of_kind(config)
        case DownstreamConfig():
            yield from _rules_of_arms(config)


def _rules_of_kind(task: LabelledTask) -> Iterator[tuple[tuple[str, ...], str]]:
    where, data = f"with kind = {task.kind}", task.data
    if task.kind != "similarity":
        yield ("data.second_text_field",), f"{where}, only with similarity: remove it"
    if task.kind != "labelling":
        yield ("data.spans_field", "data.span_unit"), f"{where}, only with labelling: remove it"
    else:
        yield ("data.label_field",), f"{where}, whose labels are in spans_field or tags_field: remove it"
    given = {"data.dev_files": data.dev_files, "data.dev_split": data.dev_split}
    for name in (name for name, value in given.items() if value):
        yield ("dev_fraction",), f"with {name}, which has the development documents: remove one of them"
    tests = {
        "data.test_files": data.test_files,
        "data.test_split": data.test_split,
        "data.split_field": data.split_field,
    }
    for name in (name for name, value in {**tests, "num_folds": task.num_folds}.items() if value):
        yield ("test_fraction",), f"with {name}, which decides what is tested: remove one of them"


def _rules_of_arms(config: DownstreamConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    trained = [arm for arm in config.arms.values() if arm.is_trained(config.task.kind)]
    if not any(arm.frozen for arm in trained):
        yield (
            tuple(f"recipe.{name}" for name in FROZEN_RATES),
            "without a trained arm that has frozen = true: remove it",
        )
    if all(arm.frozen for arm in trained):
        yield (
            tuple(f"recipe.{name}" for name in RATES),
            "without an arm whose model is tuned (frozen = false): remove it",
        )
    if not trained:
        yield OF_TRAINING, "without an arm that is trained, one with a model: remove it"
    if all(arm.model is None for arm in config.arms.values()):
        yield OF_MODELS, "without an arm that has a model: remove it"
