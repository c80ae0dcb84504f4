"""What DeepSpeed is configured with: stage and offload from the launch, all else from the recipe."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from longmlm.errors import TrainingError
from longmlm.model.mlm import MlmObjective
from longmlm.training import deepspeed_backend
from longmlm.training.deepspeed_backend import DeepSpeedBackend, plugin_of_launch
from tests.support.families import tiny_model
from tests.support.tiny import with_fresh_process_state
from tests.support.training import with_recipe


@pytest.fixture
def deepspeed_launch(monkeypatch):
    """A launch with DeepSpeed, as Accelerate's launcher passes it to its processes."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def test_what_launch_and_recipe_set_differently_is_refused_by_name(deepspeed_launch, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "1.0")
    plugin = plugin_of_launch(1.0)
    assert plugin is not None and plugin.deepspeed_config["gradient_clipping"] == 1.0
    with pytest.raises(TrainingError, match=r"gradient_clipping = 1\.0, the recipe 0\.5"):
        plugin_of_launch(0.5)
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "auto")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(TrainingError, match="gradient_accumulation_steps = 4, the recipe 1"):
        plugin_of_launch(0.5)


def test_an_optimizer_in_deepspeeds_own_file_is_refused(deepspeed_launch, monkeypatch, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}}))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    with pytest.raises(TrainingError, match="sets optimizer"):
        plugin_of_launch(1.0)


@pytest.mark.parametrize(("stage", "is_overlapped"), [("1", False), ("2", False), ("3", True)])
def test_communication_overlaps_with_computation_in_stage_3(deepspeed_launch, monkeypatch, stage, is_overlapped):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", stage)
    plugin = plugin_of_launch(1.0)
    assert plugin is not None
    assert plugin.deepspeed_config["zero_optimization"]["overlap_comm"] is is_overlapped


def test_a_launch_decides_itself_whether_communication_overlaps(deepspeed_launch, monkeypatch, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2, "overlap_comm": True}}))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    plugin = plugin_of_launch(1.0)
    assert plugin is not None
    assert plugin.deepspeed_config["zero_optimization"]["overlap_comm"] is True


@pytest.mark.parametrize(
    ("name", "value"), [("ZERO_STAGE", "0"), ("OFFLOAD_OPTIMIZER_DEVICE", "nvme"), ("OFFLOAD_PARAM_DEVICE", "nvme")]
)
def test_an_unsupported_stage_or_offload_is_refused(deepspeed_launch, monkeypatch, name, value):
    monkeypatch.setenv(f"ACCELERATE_DEEPSPEED_{name}", value)
    with pytest.raises(TrainingError, match="stage 1, 2 or 3"):
        plugin_of_launch(1.0)


def test_a_checkpoint_of_before_the_first_update_has_no_moments_to_restore():
    engine = SimpleNamespace(optimizer=SimpleNamespace(optimizer=SimpleNamespace(state={})))
    backend = DeepSpeedBackend(Accelerator(cpu=True), engine, (nn.Parameter(torch.zeros(2)),), 8)
    backend.restore_optimizer({"state": {}})
    with_fresh_process_state()


def test_where_deepspeed_is_not_installed_the_extra_is_named(deepspeed_launch, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(deepspeed_backend, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"pip install 'longmlm\[deepspeed\]'"):
        plugin_of_launch(1.0)


def test_without_deepspeed_there_are_no_settings_of_it(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED", raising=False)
    assert plugin_of_launch(1.0) is None


def test_fp16_is_refused_with_what_to_choose(settings):
    objective, recipe = MlmObjective(tiny_model("roberta", 1), "fp16"), with_recipe(settings, precision="fp16").recipe
    with pytest.raises(TrainingError, match=r"fp16, which DeepSpeed's backend does not support.*ddp.yaml"):
        DeepSpeedBackend.wrap(Accelerator(cpu=True), objective, recipe)
    with_fresh_process_state()
