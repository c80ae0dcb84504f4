"""Every value that a setting lists goes through the command of the setting, which does what the value says."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from longmlm import cli, staleness
from longmlm.artifacts.evaluation import read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.config import STAGES, parse
from longmlm.data import engine
from longmlm.options import sections
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline, StageName
from longmlm.stages import prepare, run
from longmlm.training import loop
from longmlm.training.run_folder import newest_verified, read_state
from tests.support.commands import Command, command
from tests.support.tiny import LONG_POSITIONS, World

__all__ = ["command"]
STAGE_NAMES = get_args(StageName)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TESTED = {  # by data/test_quoting.py, data/test_segmenter.py, training/test_pairs.py
    "prepare: recipe.sources.quoting",
    "prepare: recipe.words",
    "pretrain: recipe.pairs.kind",
}


def listed_values(kind: Any) -> tuple[str, ...]:
    """Returns the values of a Literal, also inside an optional type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for part in get_args(kind) for value in listed_values(part))


def settings_with_values(kind: type, prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each setting that lists its values, with them: those of a stage or pipeline only under their command."""
    inherited = {item.name for item in fields(ResolvedPipeline)} if kind is PlanConfig else set()
    for item in (item for item in fields(kind) if item.name not in inherited):
        if values := listed_values(item.type):
            yield prefix + item.name, values
        for part in sections(item):
            if part not in STAGES:
                yield from settings_with_values(part, f"{prefix}{item.name}.")


COMMANDS = {name: kind for name, kind in cli.COMMANDS.items() if name not in cli.FEATURES}
VALUES = dict(pair for command, kind in COMMANDS.items() for pair in settings_with_values(kind, f"{command}: "))


def every_value_of(setting: str) -> pytest.MarkDecorator:
    """Returns the decorator that calls a test with each value of a setting."""
    TESTED.add(setting)
    return pytest.mark.parametrize("value", VALUES[setting])


@pytest.fixture
def mine(world: World, tmp_path: Path) -> Path:
    """A pipeline of the tiny model."""
    tables = {
        "model": str(world.base),
        "corpus": [str(world.rows.parent / "text.jsonl")],
        "length": LONG_POSITIONS,
        "output": "out",
        "prepare": {"recipe": {"held_out_fraction": 0.25}},
        "pretrain": {"recipe": {"num_steps": 2, "batch_tokens": 160, "precision": "no", "held_out": {"max_rows": 16}}},
        "evaluate": {"recipe": {"precision": "no", "held_out": {"max_rows": 16}}},
        "release": {"recipe": {"allow_unrecovered": True}, "card": {"license": "mit"}},
    }
    return written(tmp_path / "mine.toml", tables)


def written(path: Path, tables: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def test_every_setting_that_lists_its_values_is_tested() -> None:
    assert VALUES.keys() == TESTED


@every_value_of("run: until")
def test_a_pipeline_runs_until(command: Command, mine: Path, value: str, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(run, "run_stage", lambda _config, name, *_: started.append(name))
    monkeypatch.setattr(run, "summary", lambda _: "")
    command("run", mine, "--until", value, "--extend.recipe.initialisation", "fitted")
    assert started == [*STAGE_NAMES[: STAGE_NAMES.index(value) + 1]]
    started.clear()
    command("run", mine, "--until", value)  # distils on rows
    names = ["prepare", "extend", *STAGE_NAMES[2:]]
    assert started == names[: names.index(value) + 1]


@pytest.mark.slow
def test_a_pipeline_runs_until_each_stage_and_again(command: Command, mine: Path, capsys) -> None:
    for last in (*STAGE_NAMES, *STAGE_NAMES):
        capsys.readouterr()
        command("run", mine, "--until", last, "--extend.recipe.initialisation", "fitted")
        lines = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
        assert list(dict.fromkeys(lines)) == [f"{name}:" for name in STAGE_NAMES[: STAGE_NAMES.index(last) + 1]]
        fitted = parse(ResolvedPipeline, [str(mine), "--extend.recipe.initialisation", "fitted"])
        assert staleness.is_current(fitted, last)


@every_value_of("prepare: recipe.packing")
@pytest.mark.slow
def test_rows_are_packed(command: Command, mine: Path, value: str) -> None:
    command("prepare", mine, "--recipe.packing", value, *(["--recipe.pairs"] if value == "sentence-pair" else []))
    assert read_rows_manifest(Path("out/rows")).plan.packing == value


@every_value_of("prepare: recipe.duplicates")
@pytest.mark.slow
def test_duplicates_are_looked_for(command: Command, mine: Path, value: str) -> None:
    command("prepare", mine, "--recipe.duplicates", value)
    manifest = read_rows_manifest(Path("out/rows"))
    assert manifest.plan.duplicates == value and (manifest.report.duplicates is None) == (value == "keep")


@every_value_of("prepare: runtime.encoder")
@pytest.mark.slow
def test_text_is_encoded(command: Command, mine: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(engine, "exact_encoder", made.append)
    command("prepare", mine, "--runtime.encoder", value)
    assert len(made) == (value == "auto")


@every_value_of("prepare: runtime.executor")
def test_slices_are_packed(command: Command, mine: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(mine.parent))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    packed: list[object] = []
    monkeypatch.setattr(prepare, "prepare_rows", lambda *arguments, **_: packed.extend(arguments) or 1 / 0)
    with pytest.raises(ZeroDivisionError if value == "local" else SystemExit):
        command("prepare", mine, "--runtime.executor", value)
    assert bool(packed) == (value == "local")


@every_value_of("extend: recipe.initialisation")
def test_positions_are_initialised(command: Command, mine: Path, world: World, value: str) -> None:
    distillation = ["--rows", str(world.rows), "--recipe.distillation.num-tokens", "80"]
    distillation += ["--recipe.distillation.precision", "no"]
    command("extend", mine, "--recipe.initialisation", value, *(distillation if value == "distilled" else []))
    assert read_provenance("out/long").extension.initialisation == value


@every_value_of("extend: recipe.distillation.precision")
@pytest.mark.usefixtures("auto_precision")
def test_layers_are_distilled_in_a_precision(command: Command, mine: Path, world: World, value: str) -> None:
    options = ["--rows", str(world.rows), "--recipe.distillation.num-tokens", "80", "--recipe.initialisation"]
    command("extend", mine, *options, "distilled", "--recipe.distillation.precision", value)
    expected = resolved_precision(value)
    assert read_provenance("out/long").extension.distilled.precision == expected


@every_value_of("extend: recipe.mode")
def test_positions_have_a_mode(command: Command, mine: Path, value: str) -> None:
    initialisation = {"materialized": "fitted", "generated": "hierarchical"}[value]
    command("extend", mine, "--recipe.mode", value, "--recipe.initialisation", initialisation)
    assert read_provenance("out/long").extension.mode == value


def pretrain(command: Command, world: World, *options: str) -> Path:
    """Trains the long model for two steps and returns the last checkpoint."""
    recipe = ("--recipe.num-steps=2", "--recipe.batch-tokens=160", "--recipe.learning-rate=1e-3")
    recipe += ("--recipe.held-out.max-rows=16", "--start.checkpoint", str(world.long))
    command("pretrain", "--run", "run", "--rows", world.rows, *recipe, *options)
    return newest_verified(Path("run")).folder


@every_value_of("pretrain: recipe.schedule")
@pytest.mark.slow
def test_rates_follow_the_schedule(command: Command, world: World, value: str, monkeypatch) -> None:
    rates, update = [], loop.one_update

    def recorded(*arguments: object) -> object:
        rates.append((made := update(*arguments)).learning_rate)
        return made

    monkeypatch.setattr(loop, "one_update", recorded)
    decay = ["--recipe.decay-steps=1"] if value == "constant-then-decay" else []
    saved = pretrain(command, world, "--recipe.precision=no", "--recipe.schedule", value, *decay)
    assert (read_state(saved).recipe.schedule, len(rates)) == (value, 2)


@every_value_of("pretrain: recipe.precision")
@pytest.mark.slow
def test_training_computes_in(command: Command, world: World, value: str, auto_precision: str) -> None:
    saved = read_state(pretrain(command, world, "--recipe.precision", value))
    assert saved.state.step == 2
    assert saved.precision == (auto_precision if value == "auto" else value)


@every_value_of("pretrain: recipe.masking.unit")
@pytest.mark.slow
def test_units_are_masked(command: Command, world: World, value: str) -> None:
    saved = read_state(pretrain(command, world, "--recipe.precision=no", "--recipe.masking.unit", value))
    assert (saved.state.step, saved.recipe.masking.unit) == (2, value)


@every_value_of("pretrain: recipe.held_out.masking.unit")
def test_held_out_masks_are_of_single_tokens(command: Command, world: World, value: str) -> None:
    unit = ("--recipe.precision=no", "--recipe.held-out.masking.unit", value)
    if value == "token":
        assert read_state(pretrain(command, world, *unit)).recipe.held_out.masking.unit == value
    else:
        with pytest.raises(SystemExit):
            pretrain(command, world, *unit)


@every_value_of("evaluate: recipe.held_out.masking.unit")
def test_masks_of_an_evaluation_are_of_single_tokens(command: Command, world: World, value: str) -> None:
    options = ("--rows", world.rows, "--output", "evaluation", "--base", world.base, "--long-after", world.trained)
    options += ("--recipe.held-out.max-rows", 16, "--recipe.held-out.masking.unit", value)
    if value == "token":
        command("evaluate", *options)
        assert read_evaluation(Path("evaluation/evaluation.json")).recipe.held_out.masking.unit == value
    else:
        with pytest.raises(SystemExit):
            command("evaluate", *options)


@every_value_of("pretrain: tracking.tracker")
@pytest.mark.slow
def test_a_run_is_tracked(command: Command, world: World, value: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    pretrain(command, world, "--recipe.precision=no", "--tracking.tracker", value)
    assert "failed" not in capsys.readouterr().out
    assert Path("run", value).is_dir()


@every_value_of("evaluate: recipe.precision")
@pytest.mark.slow
def test_an_evaluation_computes_in(command: Command, world: World, value: str, auto_precision: str) -> None:
    models = ("--base", world.base, "--long-after", world.trained)
    options = ("--recipe.precision", value, "--recipe.held-out.max-rows", 16)
    command("evaluate", "--rows", world.rows, "--output", "evaluation", *models, *options)
    precision = read_evaluation(Path("evaluation/evaluation.json")).precision
    assert precision == (auto_precision if value == "auto" else value)


def release(command: Command, world: World, evaluation: Path, *options: str) -> Path:
    paths = ("--model", world.trained, "--rows", world.rows, "--evaluation", evaluation, "--output", "released")
    command("release", *paths, "--card.title", "tiny", "--card.license", "mit", *options)
    return Path("released")


@every_value_of("release: recipe.weights")
@pytest.mark.slow
def test_weights_are_stored_as(command: Command, world: World, evaluation: Path, value: str) -> None:
    weights = load_file(release(command, world, evaluation, "--recipe.weights", value) / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {TYPES[value]}


@every_value_of("release: recipe.sentence_transformer")
@pytest.mark.slow
def test_sentences_are_pooled(command: Command, world: World, evaluation: Path, value: str) -> None:
    folder = release(command, world, evaluation, "--recipe.sentence-transformer", value)
    assert f'"pooling_mode_{value}' in (folder / "1_Pooling" / "config.json").read_text(encoding="utf-8")


@every_value_of("checkpoints: action")
def test_checkpoints_are(command: Command, run_folder: Path, value: str, capsys) -> None:
    command("checkpoints", "--run", run_folder, "--action", value, *(["--output", "e"] if value == "export" else []))
    assert "step-00000001" in capsys.readouterr().out
