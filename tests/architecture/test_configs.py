"""Every file under configs/ is accepted by its stage or by Accelerate, and so is every command of the pipelines."""

import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from longmlm.cli import STAGES
from longmlm.config import parse, read

CONFIGS = Path(__file__).parents[2] / "configs"
TOMLS = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.toml"))
YAMLS = sorted(path.name for path in CONFIGS.glob("accelerate/*.yaml"))
PIPELINES = ["demo.sh", "minilm-1536.sh", "scratch-mini.sh"]


def test_every_stage_ships_a_config() -> None:
    assert {Path(name).parts[0] for name in TOMLS} == set(STAGES) - {"checkpoints"}
    assert len(YAMLS) >= 2


@pytest.mark.parametrize("name", TOMLS)
def test_toml_parses(name: str) -> None:
    kind = STAGES[Path(name).parts[0]]
    assert isinstance(read(kind, [CONFIGS / name]), kind)


@pytest.mark.parametrize("name", TOMLS)
def test_toml_names_files_that_ship(name: str) -> None:
    named = re.findall(r'"((?:src/longmlm/bundled|configs)/[^"*]+)"', (CONFIGS / name).read_text())
    assert [path for path in named if not (CONFIGS.parent / path).exists()] == []


@pytest.mark.parametrize("name", YAMLS)
def test_accelerate_loads(name: str) -> None:
    assert load_config_from_file(str(CONFIGS / "accelerate" / name)).num_processes >= 1


def test_every_pipeline_is_tested(root: Path) -> None:
    assert sorted(path.name for path in root.glob("pipelines/*.sh")) == PIPELINES


@pytest.mark.parametrize("name", PIPELINES)
def test_commands_of_pipeline_parse(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    commands = re.findall(r"\blongmlm (\w+) (configs/.+)", (root / "pipelines" / name).read_text())
    assert {stage for stage, _ in commands} >= {"prepare", "release"}
    for stage, arguments in commands:
        words = shlex.split(arguments.replace("$out", "out").replace("${corpora[@]}", "corpus.jsonl"))
        assert isinstance(parse(STAGES[stage], words), STAGES[stage])
