"""Releases of the tiny trained model."""

from pathlib import Path

from tests.support.tiny import World


def release_settings(world: World, evaluation: Path, output: Path) -> dict[str, object]:
    """Returns settings that are right."""
    paths = {"model": world.trained, "rows": world.rows, "output": output, "evaluation": evaluation}
    card = {"title": "tiny", "license": "apache-2.0", "data": ["demo novels"]}
    return {name: str(path) for name, path in paths.items()} | {"card": card}
