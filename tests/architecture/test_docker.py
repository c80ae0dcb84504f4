"""The image, as far as it shows without an engine: pinned, not root, its dependencies in a layer of their own."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def instructions(root: Path) -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n", " ", (root / "docker" / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]


def test_the_base_image_has_one_version_and_one_that_the_package_supports(root: Path, instructions) -> None:
    [image] = [argument for name, argument in instructions if name == "FROM"]
    assert re.fullmatch(r"python:3\.1[123]\.\d+-slim-[a-z]+", image)


def test_what_is_installed_is_pinned(instructions) -> None:
    installed = [line for name, line in instructions if name == "RUN" and "pip install" in line]
    assert installed
    for line in installed:
        assert line.count("pip install") == line.count("--constraint constraints.txt")


def test_the_container_does_not_run_as_root(instructions) -> None:
    names = [name for name, _ in instructions]
    last = max(place for place, name in enumerate(names) if name == "USER")
    assert instructions[last][1] not in ("root", "0")
    assert set(names[last + 1 :]) <= {"CMD", "ENTRYPOINT"}


def test_a_change_of_code_leaves_the_layer_of_dependencies(root: Path, instructions) -> None:
    install = next(place for place, (name, line) in enumerate(instructions) if name == "RUN" and "pip install" in line)
    copied = " ".join(argument for name, argument in instructions[:install] if name == "COPY").split()[:-1]
    assert set(copied) == {"pyproject.toml", "constraints.txt", "LICENSE"}
    assert all((root / name).is_file() for name in copied)
    assert ("COPY", "--chown=longmlm:longmlm . .") in instructions[install:]


def test_what_git_ignores_stays_outside_the_image(root: Path) -> None:
    ignored = {line.strip("/") for line in (root / ".gitignore").read_text().split()}
    left_out = {line.removeprefix("**/") for line in (root / ".dockerignore").read_text().splitlines()[1:]}
    assert len(ignored) > 5
    assert ignored <= left_out
    assert ".git" in left_out
