"""Accelerate accepts every launch that is shipped, and run every shipped pipeline, alone and with every overlay."""

import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from longmlm.cli import COMMANDS
from longmlm.config import BASE_KEYS, parse
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.shipped import LAUNCHES, PACKAGE, SHIPPED, bundled_resolved

CONFIGS = Path(__file__).parents[2] / "configs" / "accelerate"
YAMLS = sorted(path.name for path in LAUNCHES.glob("*.yaml"))
TABLES = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(SHIPPED.glob("*.toml"))}
PIPELINES = [name for name, table in TABLES.items() if "output" in table]


@pytest.mark.parametrize("name", YAMLS)
def test_accelerate_loads(name: str) -> None:
    assert load_config_from_file(str(LAUNCHES / name)).num_processes >= 1
    assert (CONFIGS / name).samefile(LAUNCHES / name)  # where a clone had them


@pytest.mark.parametrize("name", PIPELINES)
def test_shipped_pipeline_parses_with_every_overlay(name: str) -> None:
    assert parse(ResolvedPipeline, [name]).stages.keys() >= {"prepare", "pretrain", "release"}
    for overlay in TABLES.keys() - set(PIPELINES):
        combined = parse(ResolvedPipeline, [name, overlay])
        for key in BASE_KEYS & TABLES[overlay].keys():
            assert getattr(combined, key) == TABLES[overlay][key]


def test_bundled_files_of_the_pipelines_exist() -> None:
    text = "".join((SHIPPED / f"{name}.toml").read_text(encoding="utf-8") for name in PIPELINES)
    named = re.findall('"bundled:([^"]+)"', text)
    assert len(named) >= 4
    assert [path for path in named if not (PACKAGE / "bundled" / path).exists()] == []


def test_the_commands_of_make_demo_compare_the_demo_with_a_control_on_as_many_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    printed = subprocess.run(["make", "-n", "demo"], cwd=root, capture_output=True, text=True, check=True).stdout
    lines = printed.replace("\\\n", " ").splitlines()
    commands = [line.split("longmlm ", 1)[1].split() for line in lines if line.startswith("HF_HUB_OFFLINE=1 longmlm ")]
    demo, control, evaluate = (parse(COMMANDS[name], arguments) for name, *arguments in commands)
    assert isinstance(demo, RunConfig) and isinstance(control, RunConfig) and isinstance(evaluate, EvaluateConfig)
    assert (evaluate.base, evaluate.long_after) == (control.pretrain.run, demo.pretrain.run)
    assert (evaluate.rows, control.extension) == (demo.prepare.output, False)
    assert demo.evaluate and evaluate.recipe.held_out == demo.evaluate.recipe.held_out
    assert Path(str(control.model)).resolve() == Path(str(bundled_resolved(demo.model))).resolve()
    demo_recipe, control_recipe = (replace(one.pretrain.recipe, held_out=HeldOut()) for one in (demo, control))
    assert demo_recipe == control_recipe
    sources = {one.prepare.recipe.sources for one in (demo, control)}
    assert len(sources) == 1 and demo.prepare.recipe.held_out_fraction == control.prepare.recipe.held_out_fraction


def test_outputs_differ() -> None:
    outputs = [TABLES[name]["output"] for name in PIPELINES]
    assert len(outputs) == len(set(outputs)) >= 5
