"""The files of the repository, on which its rules are tested."""

from pathlib import Path

import pytest

GENERATED = ("cache", "cache__", ".egg-info")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def files(root: Path) -> list[Path]:
    """Every file that belongs to the project, relative to its root."""
    tops = [top for top in root.iterdir() if top.name != "out" and (top.name[0] != "." or top.name == ".ci")]
    paths = [path.relative_to(root) for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    found = sorted(path for path in paths if not any(part.endswith(GENERATED) for part in path.parts))
    assert len(found) > 60
    return found


@pytest.fixture(scope="session")
def modules(files: list[Path]) -> list[Path]:
    """Every Python file of the project, relative to its root."""
    found = [path for path in files if path.suffix == ".py"]
    assert len(found) > 40
    return found
