"""README and the pages of docs/ name only commands, options, settings and files that exist."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import launch_command_parser

from longmlm.cli import COMMANDS, OTHERS
from longmlm.options import sections
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline
from tests.support.pages import Page

COMMAND = re.compile(r"(?:longmlm |longmlm\.stages\.)([a-z]+(?:-[a-z]+)*)\b(.*)")
OPTION = re.compile(r"(?<![\w-])--([a-z][\w.-]*)")
QUOTED = re.compile(r"'[^']*'")
SNAKE = re.compile(r"[a-z]+(_[a-z0-9]+)+")
FILE = re.compile(r"[\w.-]+\.(json|jsonl|toml|yaml|py|html|md|sh|sbatch|svg|png|safetensors)")
TOP_FOLDERS = (".ci", "benchmarks", "configs", "deploy", "docker", "docs", "examples", "src", "tests")
EXAMPLES = {"mine.toml", "FILE.toml", "ddp.yaml", "machine.toml", "zh.toml"}  # files of the reader
ACCELERATE = {name.lstrip("-") for name in launch_command_parser()._option_string_actions}
KINDS = {**dict.fromkeys(OTHERS, Pipeline), **COMMANDS, "pipeline": ResolvedPipeline}
HISTORY = {"CHANGELOG.md", "decisions", "experiments"}  # they name what was then


@pytest.fixture(scope="module")
def current(pages: list[Page]) -> list[Page]:
    """The pages about the present."""
    return [page for page in pages if not HISTORY & set(page.path.parts)]


@pytest.fixture(scope="module")
def source(root: Path) -> str:
    """All code and data formats of the project."""
    paths = [*root.glob("src/**/*.py"), *root.glob("tests/**/*.py"), *root.glob("deploy/*"), *root.glob("*.toml")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_commands_and_their_options_exist(current: list[Page]) -> None:
    commands = [match for page in current for line in _commands(page) if (match := COMMAND.search(line))]
    assert len(commands) > 20
    assert {match[1] for match in commands} - KINDS.keys() == set()
    options = [(match[1], option) for match in commands for option in OPTION.findall(QUOTED.sub("", match[2]))]
    assert len(options) > 5
    assert [(stage, option) for stage, option in options if not _is_option(KINDS[stage], option)] == []


def test_options_without_a_command_exist(current: list[Page]) -> None:
    own = [page for page in current if page.path.name != "use.md"]  # it names the options of servers
    codes = {code for page in own for code in page.inline if code.startswith("--")}
    options = {option for code in codes for option in OPTION.findall(code)}
    assert len(options) > 10
    known = {option for option in options if any(_is_option(kind, option) for kind in KINDS.values())}
    assert options - known - ACCELERATE - {"help"} == set()


def test_settings_exist(current: list[Page]) -> None:
    sections = {name.split(".")[0] for kind in KINDS.values() for name in _names(kind) if "." in name}
    dotted = {code for page in current for code in page.inline if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", code)}
    named = {code for code in dotted if code.split(".")[0] in sections and not FILE.fullmatch(code)}
    assert len(named) > 3
    assert named - {name for kind in KINDS.values() for name in _names(kind)} == set()


def test_identifiers_exist(current: list[Page], source: str) -> None:
    names = {code for page in current for code in page.inline if SNAKE.fullmatch(code)}
    assert len(names) > 30
    assert {name for name in names - ACCELERATE if not re.search(rf"\b{name}\b", source)} == set()


def test_files_exist(current: list[Page], root: Path, source: str) -> None:
    codes = {code for page in current for code in page.inline}
    rooted = {code for code in codes if "/" in code and code.split("/")[0] in TOP_FOLDERS and " " not in code}
    files = {code for code in codes - rooted if FILE.fullmatch(code)} - EXAMPLES
    assert min(len(rooted), len(files)) > 10
    assert {code for code in rooted if not any(root.glob(code.replace("NNNN", "*").rstrip("/")))} == set()
    assert {name for name in files if name not in source and not any(root.glob(f"**/{name}"))} == set()


def _commands(page: Page) -> Iterator[str]:
    for language, block in page.blocks:
        if language in ("", "bash", "shell"):
            yield from block.replace("\\\n", " ").splitlines()
    yield from page.inline


def _is_option(kind: type, option: str) -> bool:
    name = re.sub(r"\.\d+\b", "", option.replace("-", "_"))
    return option == "help" or name in _names(kind)


def _names(kind: Any, prefix: str = "") -> set[str]:
    """Returns the dotted names of all settings."""
    names = set()
    for item in fields(kind):
        names.add(prefix + item.name)
        for section in sections(item):
            names |= _names(section, f"{prefix}{item.name}.")
    return names
