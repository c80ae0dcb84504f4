"""Accelerate accepts every launch that is shipped, and run every shipped pipeline, alone and with every overlay."""

import re
import tomllib
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from longmlm.config import BASE_KEYS, parse
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import LAUNCHES, PACKAGE, SHIPPED

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


def test_outputs_differ() -> None:
    outputs = [TABLES[name]["output"] for name in PIPELINES]
    assert len(outputs) == len(set(outputs)) >= 5
