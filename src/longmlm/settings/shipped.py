"""What comes with the package: pipelines, launches, and a model and corpus that settings call bundled:NAME."""

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "pipelines"
LAUNCHES = PACKAGE / "launches"  # Accelerate's YAML files
JOBS = LAUNCHES / "jobs"  # files that start training on a cluster
BUNDLED = "bundled:"


def bundled_name(path: str) -> str:
    """Returns the path of a file in this package as bundled:NAME, and any other path or name as it is."""
    folder = f"{PACKAGE / 'bundled'}/"
    return f"{BUNDLED}{path.removeprefix(folder)}" if path.startswith(folder) else path


def bundled_resolved(value: Any) -> Any:
    """Returns a value of a TOML file with each bundled:NAME replaced by the path of that file in this package."""
    match value:
        case str() if value.startswith(BUNDLED):
            return str(PACKAGE / "bundled" / value.removeprefix(BUNDLED))
        case dict():
            return {key: bundled_resolved(item) for key, item in value.items()}
        case list() | tuple():
            return [bundled_resolved(item) for item in value]
        case _:
            return value


def is_same_path(one: str | Path, other: str | Path) -> bool:
    """Returns whether two names are those of one file or folder, or equal names on a hub."""
    return os.path.realpath(one) == os.path.realpath(other)
