"""Every setting has an effect, or is refused in one line that names it and the setting that it needs."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields
from functools import reduce
from pathlib import Path

import pytest
import tomli_w

from longmlm.cli import COMMANDS
from longmlm.config import parse
from longmlm.errors import UserError
from longmlm.needs import check_inputs
from longmlm.options import sections
from longmlm.settings.shipped import PACKAGE
from longmlm.settings.tables import Table, default_of, merged, with_arrays
from tests.support.prepare_settings import written
from tests.support.unused_settings import BASES, REFUSED, Refused

UNUSED = re.compile(r"no effect|need|\bis for\b|takes|remove|leave|set it or|either")
READ_OTHERWISE = {  # by a property, a key or a template, or by settings alone
    *("baseline", "corpus", "search", "public", "project", "entity", "hardware", "until", "prevent_leaks")
}


def settings_of(kind: type) -> Iterator[str]:
    """Yields the name of every setting below a class."""
    for item in fields(kind):
        if parts := [*sections(item)]:
            for part in parts:
                yield from settings_of(part)
        else:
            yield item.name


def field_of(case: Refused) -> tuple[type, Field]:
    """Returns the class and the field of the setting of a case."""
    *path, name = case.setting.partition(" = ")[0].split(".")
    kind = COMMANDS[case.command]
    for key in path:
        item = next((item for item in fields(kind) if item.name == key), None)
        kind = next(sections(item), kind) if item else kind  # an index or a name of the user's
    return kind, next(item for item in fields(kind) if item.name == name)


def test_the_code_reads_every_setting() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if "settings" not in (path.parent.name, path.stem)]
    trees = [ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in modules]
    read = {node.attr for tree in trees for node in tree if isinstance(node, ast.Attribute)}
    names = {name for kind in COMMANDS.values() for name in settings_of(kind)}
    assert len(names) > 80
    assert names - read - READ_OTHERWISE == set()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a corpus in several formats."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.csv", "text,label,t\nOne text.,x,One.\nAnother text.,y,Two.\n")
    written(tmp_path, "a.txt", "One text.\n")
    written(tmp_path, "a.jsonl", '{"text": "One text."}\n')
    return tmp_path


@pytest.mark.parametrize("command", BASES)
def test_a_setting_without_effect_is_refused_with_the_setting_that_it_needs(folder: Path, command: str) -> None:
    wrong = []
    for case in (case for case in REFUSED if case.command == command):
        message = refusal(folder, case, case.where) or ""
        if not is_about(case, message) or case.named not in message or "\n" in message:
            wrong.append((case, message))
        if case.accepted is not None and is_about(case, refusal(folder, case, case.accepted)):
            wrong.append((case, "not accepted"))
    assert wrong == []


@pytest.mark.parametrize("command", BASES)
def test_a_default_that_is_written_out_is_not_refused(folder: Path, command: str) -> None:
    refused, num_checked = [], 0
    for case in (case for case in REFUSED if case.command == command):
        default = default_of(field_of(case)[1])
        if isinstance(default, str | int | float | list | tuple):
            name = case.setting.partition(" = ")[0]
            same = case._replace(setting=tomli_w.dumps({"x": default}).replace("x", name, 1))
            refused += [(same, message) for message in [refusal(folder, same, case.where)] if is_about(same, message)]
            num_checked += 1
    assert refused == []
    assert num_checked or command in ("checkpoints", "evaluate")


def is_about(case: Refused, message: str | None) -> bool:
    """Returns whether a message says that the setting of a case is not used."""
    name = case.setting.partition(" = ")[0].rpartition(".")[2]
    return message is not None and name in message and UNUSED.search(message) is not None


def refusal(folder: Path, case: Refused, where: str) -> str | None:
    """Returns the message with which the settings, or the inputs that they name, are refused; None if they are not."""
    tables = reduce(merged, map(tomllib.loads, (BASES[case.command], where, case.setting)))
    try:
        config = parse(COMMANDS[case.command], [written(folder, "own.toml", tomli_w.dumps(given(tables)))])
        if case.command == "run":
            check_inputs(config)
        if case.command == "prepare":
            check_inputs(config)
    except UserError as error:
        return str(error)
    return None


def given(tables: Table) -> Table:
    """Returns the tables without the settings that are removed."""
    kept = {key: value for key, value in tables.items() if value != "-"}
    return {key: given(value) if isinstance(value, dict) else value for key, value in with_arrays(kept).items()}
