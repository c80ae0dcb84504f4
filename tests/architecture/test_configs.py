"""Every file under configs/ can be read by its stage or by Accelerate."""

import re
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from longmlm.config import read
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig

CONFIGS = Path(__file__).parents[2] / "configs"
STAGES = {
    "prepare": PrepareConfig,
    "extend": ExtendConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
    "release": ReleaseConfig,
}
TOMLS = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.toml"))
YAMLS = sorted(path.name for path in CONFIGS.glob("accelerate/*.yaml"))


def test_every_stage_ships_a_config() -> None:
    assert {Path(name).parts[0] for name in TOMLS} == set(STAGES)
    assert len(YAMLS) >= 2


@pytest.mark.parametrize("name", TOMLS)
def test_toml_parses(name: str) -> None:
    kind = STAGES[Path(name).parts[0]]
    assert isinstance(read(kind, [CONFIGS / name]), kind)


@pytest.mark.parametrize("name", TOMLS)
def test_toml_names_files_that_ship(name: str) -> None:
    named = re.findall(r'"((?:assets|configs)/[^"*]+)"', (CONFIGS / name).read_text())
    assert [path for path in named if not (CONFIGS.parent / path).exists()] == []


@pytest.mark.parametrize("name", YAMLS)
def test_accelerate_loads(name: str) -> None:
    assert load_config_from_file(str(CONFIGS / "accelerate" / name)).num_processes >= 1
