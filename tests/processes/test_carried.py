"""A run under DeepSpeed that starts from a model with a pooler and modules: its checkpoints have them."""

from pathlib import Path

import pytest

from longmlm.settings.pretrain import PretrainConfig
from longmlm.training.run_folder import checkpoint_folder
from tests.support.carrying import assert_carries_all, base_model, start_from
from tests.support.extras import with_heads, with_modules
from tests.support.launching import accelerate, trained


@pytest.mark.parametrize("yaml", ["zero-3.yaml", pytest.param("zero-1.yaml", marks=pytest.mark.slow)])
def test_checkpoints_of_partitioned_runs_carry_all(settings: PretrainConfig, tmp_path: Path, yaml: str) -> None:
    base = with_modules(with_heads(base_model(settings, tmp_path / "base"), "roberta"))
    run = trained(start_from(settings, base, tmp_path / "run"), tmp_path, accelerate(yaml))
    for step in (2, 4):
        assert_carries_all(checkpoint_folder(run, step))
