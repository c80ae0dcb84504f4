"""Which settings of a stage its result depends on, and the folder in which the result lies."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

from longmlm.settings.pipeline import StageConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.publishing import Publishing

NOT_COMPARED = ("runtime", "tracking", "dry_run")  # they change no result


LOCATIONS = (  # keys that say where something lies: a result depends on what lies there, under any name
    *("output", "run", "rows", "evaluation", "model", "base", "long_before", "long_after", "checkpoint"),
    *("tokenizer", "architecture", "files", "dataset", "add_tokens"),
)


def result_of(stage: StageConfig) -> Path:
    """Returns the folder that a stage writes."""
    return Path(stage.run if isinstance(stage, PretrainConfig) else stage.output)


def result_settings_by_name(stage: StageConfig) -> dict[str, object]:
    """Returns the settings on which the stage's result depends, by names such as recipe.sources.0.files."""
    return dict(_leaves(result_settings(stage)))


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    items: Iterable[tuple[object, object]] = ()
    match value:
        case dict():
            items = value.items()
        case tuple() if any(isinstance(item, dict) for item in value):
            items = enumerate(value)
        case _:
            yield name, value
    for key, item in items:
        yield from _leaves(item, f"{name}.{key}" if name else str(key))


def result_settings(stage: StageConfig) -> dict[str, object]:
    """Returns the settings on which the stage's result depends."""
    ignored = {*NOT_COMPARED, *(item.name for item in fields(Publishing) if isinstance(stage, Publishing))}
    ignored |= {"card"} if isinstance(stage, PrepareConfig) else set()
    return {key: value for key, value in asdict(stage).items() if key not in ignored}
