"""The files of the repository, whose rules are tested."""

from pathlib import Path

import pytest

HIDDEN = (".ci", ".github")
GENERATED = ("cache", "cache__", ".egg-info")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def files(root: Path) -> list[Path]:
    """Every file that belongs to the project, relative to its root."""
    tops = [
        top for top in root.iterdir() if top.name != "out" and (top.name[0] != "." or top.name in (".ci", ".github"))
    ]
    paths = [path.relative_to(root) for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    project_files = sorted(path for path in paths if not any(part.endswith(GENERATED) for part in path.parts))
    assert len(project_files) > 60
    return project_files


@pytest.fixture(scope="session")
def modules(files: list[Path]) -> list[Path]:
    """Every Python file of the project, relative to its root."""
    python_files = [path for path in files if path.suffix == ".py"]
    assert len(python_files) > 40
    return python_files
