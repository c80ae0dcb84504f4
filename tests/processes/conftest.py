"""Fixtures of small runs in processes of their own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.settings.pretrain import PretrainConfig, Start
from tests.support.hub_rows import hub, published_files, short
from tests.support.launching import Ended, accelerate, run_in_turn
from tests.support.training import (
    inputs,
    no_account,
    settings,
    train,
    train_here,
    train_until,
    twelve_steps,
    with_recipe,
    with_runtime,
)
from tests.support.worlds import models, world

__all__ = [
    "hub",
    "inputs",
    "models",
    "no_account",
    "published_files",
    "settings",
    "short",
    "train",
    "world",
]


@pytest.fixture(scope="session")
def generated(inputs: Path, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """The settings of a run with generated positions and without dropout, which one process has made."""
    still = with_recipe(twelve_steps(inputs, tmp_path_factory.mktemp("generated") / "run"), dropout=0.0)
    settings = replace(still, rows=str(models["rows"]), start=Start(checkpoint=str(models["generated"])))
    train_here(settings)
    return settings


@pytest.fixture(scope="session")
def pair(inputs: Path, generated: PretrainConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Trainings in the two processes of one launch, which ddp.yaml describes."""
    folder = tmp_path_factory.mktemp("pair")
    plain = twelve_steps(inputs, folder)
    still, free = with_recipe(plain, dropout=0.0), with_runtime(plain, rows_per_micro_batch=None)
    moved = with_runtime(still, save_every_steps=2)
    trainings = {
        "undisturbed": (plain, "none -1 0"),
        "nan": (plain, "nan 1 6"),
        "nan-gradient": (plain, "nan-gradient 1 6"),
        "full": (plain, "full -1 6"),
        "fp16": (with_recipe(still, precision="fp16"), "nan-gradient 1 5"),
        "moved": (with_runtime(moved, num_processes=2, rows_per_micro_batch=2), "terminate-in-evaluation 1 3"),
        "generated": (with_runtime(generated, num_processes=2, rows_per_micro_batch=2), "none -1 0"),
        "memory": (free, "memory 1 900000"),
        "rows": (free, "rows 1 2"),
        "communicating": (of_large_gradients(plain, folder), "communicate -1 0"),
        "dry": (with_runtime(replace(plain, dry_run=True), num_threads=None), "none -1 0"),
    }
    named = {name: (in_folder(one, folder / name), fault) for name, (one, fault) in trainings.items()}
    train_until(in_folder(moved, folder / "moved"), 3)
    named["full-resumed"] = (named["full"][0], "none -1 0")
    return run_in_turn(named, folder, accelerate("ddp.yaml", "--num_processes", "2"))


def in_folder(settings: PretrainConfig, folder: Path) -> PretrainConfig:
    return replace(settings, run=str(folder / "run"))


def of_large_gradients(settings: PretrainConfig, folder: Path) -> PretrainConfig:
    """Returns three steps of a model whose gradients take more than DDP's first bucket of 1 MiB."""
    architecture = json.loads(Path(str(settings.start.architecture)).read_text(encoding="utf-8"))
    larger = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    (folder / "architecture.json").write_text(json.dumps(architecture | larger), encoding="utf-8")
    start = replace(settings.start, architecture=str(folder / "architecture.json"))
    return with_runtime(with_recipe(replace(settings, start=start), num_steps=3), rows_per_micro_batch=2)
