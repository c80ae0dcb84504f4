"""Which settings of a stage its result depends on, and the folder in which the result lies."""

from dataclasses import asdict, fields
from pathlib import Path

from longmlm.settings.pipeline import StageConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.publishing import Publishing

NOT_COMPARED = ("runtime", "tracking", "dry_run", "more_steps")  # they change no result


def result_of(stage: StageConfig) -> Path:
    """Returns the folder that a stage writes."""
    return Path(stage.run if isinstance(stage, PretrainConfig) else stage.output)


def result_settings(stage: StageConfig) -> dict[str, object]:
    """Returns the settings on which the stage's result depends."""
    ignored = {*NOT_COMPARED, *(item.name for item in fields(Publishing) if isinstance(stage, Publishing))}
    ignored |= {"card"} if isinstance(stage, PrepareConfig) else set()
    return {key: value for key, value in asdict(stage).items() if key not in ignored}
