"""JSON Schemas of settings files: all shipped files are valid, mistakes are not, and they say what the settings say."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from longmlm.cli import COMMANDS, FEATURES, main
from longmlm.completion import completion_script
from longmlm.config import _help_values, parse
from longmlm.options import explanations, named_fields, options_of
from longmlm.pipeline_files import pipeline_file
from longmlm.schema import schema_text
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline, RunConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.shipped import SHIPPED
from longmlm.settings.tables import OPTION_ONLY, leaves
from tests.support.prepare_settings import PREPARE
from tests.support.tiny import ENDLESS_PIPELINE, PIPELINE

EXPERIMENTS = Path(__file__).parents[1] / "docs" / "experiments"


@cache
def validator(kind: type) -> Draft7Validator:
    schema = json.loads(schema_text(kind, "files"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def problems(kind: type, text: str) -> list[str]:
    """Returns where the content of a file is wrong, and how."""
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(tomllib.loads(text))]


def kind_of(path: Path) -> type | None:
    """Returns the settings that a file has; None if their feature was deleted."""
    if path.is_relative_to(EXPERIMENTS / "downstream"):
        return FEATURES.get("downstream")
    return FEATURES.get("compare") if path.is_relative_to(EXPERIMENTS / "compare") else ResolvedPipeline


FILES = [*sorted(SHIPPED.glob("*.toml")), *sorted(EXPERIMENTS.rglob("*.toml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_the_project_is_valid(path: Path) -> None:
    if kind := kind_of(path):
        assert problems(kind, path.read_text(encoding="utf-8")) == []
    assert len(FILES) > 40


def test_files_of_other_tests_and_of_init_are_valid() -> None:
    assert problems(ResolvedPipeline, PIPELINE) == problems(ResolvedPipeline, ENDLESS_PIPELINE) == []
    assert problems(PrepareConfig, PREPARE) == []
    printed = pipeline_file(Pipeline(model="m", corpus=("a",), length=600, output="o"))
    lines = (line.removeprefix("#") if line[1:2] not in ("", " ", ":") else line for line in printed.splitlines())
    live = "\n".join(lines)
    assert live.count("\n[") > 6
    assert problems(ResolvedPipeline, printed) == problems(ResolvedPipeline, live) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("legnth = 3", ["$: Additional properties", "'legnth'"]),
        ("[pretrain.recipe]\nnum_step = 3", ["$.pretrain.recipe: ", "'num_step'"]),
        ("length = '3'", ["$.length: '3' is not of type 'integer'"]),
        ("length = 3.5", ["$.length: 3.5 is not of type 'integer'"]),
        ("length = 2", ["$.length: 2 is less than the minimum of 3"]),
        ("extension = 1", ["$.extension: 1 is not of type 'boolean'"]),
        ("corpus = 'a'", ["$.corpus: 'a' is not of type 'array'"]),
        ("corpus = [1]", ["$.corpus[0]: 1 is not of type 'string'"]),
        ("until = 'train'", ["$.until: 'train' is not one of ['extend'"]),
        ("[pretrain.recipe]\nschedule = 'cosin'", ["$.pretrain.recipe.schedule: 'cosin' is not one of"]),
        ("[pretrain.recipe.weights]\na = 'x'", ["$.pretrain.recipe.weights.a"]),
        ("[[prepare.recipe.sources]]\nfile = ['a']", ["$.prepare.recipe.sources[0]: ", "'file'"]),
        ("prepare = 1", ["$.prepare: 1 is not of type 'object'"]),
    ],
)
def test_mistakes_are_found(text: str, found: list[str]) -> None:
    [problem] = problems(ResolvedPipeline, text)
    assert all(part in problem for part in found)


def test_what_a_file_may_contain_besides_plain_values_is_valid() -> None:
    text = "[pretrain.recipe]\nlearning_rate = 1\nweights = {a = 2, b = {share = 0.5}}\n"
    text += "[prepare.recipe.sources.0]\nlanguage = 'zh'\n"  # it changes the first source of an earlier file
    assert problems(ResolvedPipeline, text) == []


@pytest.mark.skipif("compare" not in FEATURES, reason="the feature was deleted")
def test_arms_are_overlays_and_a_search_has_lists() -> None:
    kind = FEATURES.get("compare", object)
    good = "[compare.arms.a]\nlength = 3\n[compare.arms.a.extend.recipe]\nalpha = 0.3\n"
    good += "[compare.search]\npretrain.recipe.learning_rate = [1e-4, 2e-4]\n"
    assert problems(kind, good) == []
    for bad, where in (
        ("[compare.arms.a]\nlegnth = 3", "$.compare.arms.a: "),
        ("[compare.search]\npretrain.recipe.learning_rate = 1e-4", "$.compare.search.pretrain.recipe.learning_rate"),
        (
            "[compare.search]\npretrain.recipe.learning_rate = ['x']",
            "$.compare.search.pretrain.recipe.learning_rate[0]",
        ),
        ("[tables]\na = 1", "'tables' was unexpected"),
    ):
        [problem] = problems(kind, bad)
        assert where in problem


def test_it_explains_every_setting_by_its_docstring() -> None:
    described = dict(_described(json.loads(schema_text(PretrainConfig, "pretrain"))))
    names = {name for name, _ in named_fields(PretrainConfig)}
    unused = {f"recipe.held_out.masking.{name}" for name in ("unit", "mask_patterns")}
    assert described.keys() == names - {OPTION_ONLY} - unused
    texts = explanations(PretrainConfig)
    assert all(described[name] == texts[name] for name in texts if name != OPTION_ONLY)
    assert described["recipe.num_steps"].startswith("Number of optimizer updates")


def _described(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in schema["properties"].items():
        yield f"{prefix}{name}", inner["description"]
        if "properties" in inner:
            yield from _described(inner, f"{prefix}{name}.")


def test_defaults_are_those_of_a_pipeline() -> None:
    """A setting whose value a pipeline derives has none, since the default of its stage is not used."""
    recipe = json.loads(schema_text(ResolvedPipeline, "pipeline"))["properties"]["pretrain"]["properties"]["recipe"]
    assert recipe["properties"]["weight_decay"]["default"] == 0.01
    assert "default" not in recipe["properties"]["warmup_steps"]
    own = json.loads(schema_text(PretrainConfig, "pretrain"))["properties"]["recipe"]
    assert own["properties"]["warmup_steps"]["default"] == 0


@pytest.mark.parametrize("command", ["pipeline", *COMMANDS])
def test_the_command_prints_the_schema_of_each_command(command: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["longmlm", "schema", command])
    main()
    schema = json.loads(capsys.readouterr().out)
    assert schema["title"] == f"longmlm {command}"
    kind = COMMANDS.get(command, ResolvedPipeline)
    assert schema["properties"].keys() == {item.name for item in fields(kind)} - {"tables", OPTION_ONLY}


def test_without_a_command_it_is_that_of_pipeline_files(monkeypatch, capsys) -> None:
    for arguments in (["schema"], ["schema", "pipeline"]):
        monkeypatch.setattr(sys, "argv", ["longmlm", *arguments])
        main()
    first, second = capsys.readouterr().out.split("\n}\n")[:2]
    assert first == second


def test_settings_that_no_place_accepts_are_listed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    page = (EXPERIMENTS.parent / "settings.md").read_text(encoding="utf-8")
    for command in ("run", "plan", "compare", "pretrain", "evaluate"):
        tables = properties_of(json.loads(schema_text(COMMANDS[command], command)))
        masking = [names for path, names in tables.items() if path.endswith("held_out.masking")]
        assert masking and all("selected_fraction" in names for names in masking)
        assert not [names for names in masking if names & {"unit", "mask_patterns"}]
        with pytest.raises(SystemExit):
            parse(COMMANDS[command], ["--help"])
        shown = capsys.readouterr().out
        assert "held-out.masking.selected-fraction" in shown and (
            "recipe.masking.unit" in shown or command == "evaluate"
        )
        assert "held-out.masking.unit" not in shown and "held-out.masking.mask-patterns" not in shown
    for stage in ("pretrain", "evaluate"):
        section = page.partition(f"### {stage}: `[recipe.held_out.masking]`")[2].partition("###")[0]
        assert "`selected_fraction`" in section and "`unit`" not in section and "`mask_patterns`" not in section
    script = completion_script("bash", {"run": RunConfig}, {}, {"run": ""})
    assert "held-out.masking.masked-share" in script and "held-out.masking.unit" not in script
    assert validator(EvaluateConfig).is_valid({"recipe": {"held_out": {"masking": {"masked_share": 0.9}}}})


def properties_of(schema: dict[str, Any], path: str = "") -> dict[str, set[str]]:
    """Returns the names of the properties of every table of a schema, by its dotted name."""
    found = {path: set(schema.get("properties", {}))}
    for name, inner in schema.get("properties", {}).items():
        found |= properties_of(inner, f"{path}.{name}".lstrip("."))
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            found |= properties_of(schema[key], f"{path}.*")
    return found


def test_help_shows_the_values_of_the_example_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "plan", "compare", "prepare", "pretrain"):
        with pytest.raises(SystemExit):
            parse(COMMANDS[command], ["--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "for model = MODEL, corpus = TEXT, length = 1536 and output = OUTPUT" in shown
    example = ["--model", "MODEL", "--corpus", "TEXT", "--length", "1536", "--output", "OUTPUT"]
    actual = dict(leaves(asdict(parse(RunConfig, example))))
    checked = 0
    for option in options_of(RunConfig, _help_values(RunConfig, {}), {}):
        if default := re.search(r"\(default: (.*)\)$", option.help):
            name = option.setting
            value = actual[name] if name in actual else actual["prepare.recipe.sources"][0][name.rpartition(".")[2]]
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            assert default[1] == shown, option.setting
            checked += 1
    assert checked > 50
