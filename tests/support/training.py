"""Small runs: their inputs as fixtures, and what tests read of their folders. A conftest imports the fixtures."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaTokenizer

from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile, TrainingMetrics
from longmlm.artifacts.run import TrainState
from longmlm.batches import steps
from longmlm.settings.masking import HeldOut
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, PretrainRuntime, Start
from longmlm.stages.prepare import prepare
from longmlm.stages.pretrain import pretrain
from longmlm.training import loop, tracker
from longmlm.training.run_folder import checkpoint_folder, read_state
from tests.support.once import ground, once
from tests.support.tiny import with_fresh_process_state

ROOT = Path(__file__).parents[2]
CHILDREN = str(ROOT / "tests" / "support" / "children")  # on the PYTHONPATH of what may train a random model
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT), CHILDREN])
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
Train = Callable[[PretrainConfig], Path]
Drawn = list[tuple[int, int]]  # row and epoch


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The rows that are masked for training, each with the epoch that decides its mask."""
    rows, mask_row = [], steps.mask_row

    def recorded(*arguments: object) -> object:
        rows.append((arguments[5], arguments[4]))
        return mask_row(*arguments)

    monkeypatch.setattr(steps, "mask_row", recorded)
    return rows


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Path:
    """A folder with a tokenizer, rows of 32 tokens and the architecture of a tiny RoBERTa with dropout."""
    return once(ground(tmp_path_factory) / "inputs", make_inputs)


def make_inputs(folder: Path) -> None:
    folder.mkdir()
    lines = (ROOT / "src/longmlm/bundled/text/demo.jsonl").read_text(encoding="utf-8").splitlines()[:160:20]
    texts = [json.loads(line)["text"][:4000] for line in lines]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    RobertaTokenizer(vocab=model["vocab"], merges=merges, model_max_length=32).save_pretrained(folder / "tokenizer")
    architecture = {
        "model_type": "roberta",
        "vocab_size": 400,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 34,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 1,
    }
    (folder / "architecture.json").write_text(json.dumps(architecture), encoding="utf-8")
    recipe = PrepareRecipe(
        tokenizer=str(folder / "tokenizer"),
        sources=(Source(files=(str(folder / "text.jsonl"),)),),
        row_length=32,
        held_out_fraction=0.3,
    )
    prepare(PrepareConfig(output=str(folder / "rows"), recipe=recipe))


def twelve_steps(inputs: Path, run: Path) -> PretrainConfig:
    """Returns the settings of twelve steps from an untrained model, less than an epoch."""
    return PretrainConfig(
        run=str(run),
        rows=str(inputs / "rows"),
        start=Start(architecture=str(inputs / "architecture.json"), tokenizer=str(inputs / "tokenizer")),
        recipe=PretrainRecipe(
            num_steps=12,
            batch_tokens=256,
            learning_rate=1e-3,
            warmup_steps=2,
            precision="no",
            seed=8,
            held_out=HeldOut(max_rows=20),
        ),
        runtime=PretrainRuntime(
            rows_per_micro_batch=4, num_threads=1, log_every_steps=1, evaluate_every_steps=4, save_every_steps=4
        ),
    )


@pytest.fixture
def settings(inputs, tmp_path) -> PretrainConfig:
    return twelve_steps(inputs, tmp_path / "run")


def train_here(config: PretrainConfig) -> Path:
    """Runs the stage in this process and returns the run folder."""
    with_fresh_process_state()
    try:
        pretrain(config)
    finally:
        with_fresh_process_state()
    return Path(config.run)


@pytest.fixture
def train() -> Callable[[PretrainConfig], Path]:
    return train_here


@pytest.fixture(scope="session")
def uninterrupted(inputs, tmp_path_factory) -> Path:
    """The run that nothing disturbs, which no test may change."""
    return once(ground(tmp_path_factory) / "uninterrupted", lambda run: train_here(twelve_steps(inputs, run)))


@pytest.fixture
def finished(settings, uninterrupted) -> Path:
    """The folder of the settings with a copy of that run."""
    return Path(shutil.copytree(uninterrupted, settings.run))


@pytest.fixture
def no_account(monkeypatch, tmp_path) -> Iterator[None]:
    """Nobody is logged in at W&B, clients write below tmp_path, and a busy machine may be slow."""
    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 120.0)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]


def with_recipe(settings: PretrainConfig, **changes: object) -> PretrainConfig:
    return replace(settings, recipe=replace(settings.recipe, **changes))


def with_runtime(settings: PretrainConfig, **changes: object) -> PretrainConfig:
    return replace(settings, runtime=replace(settings.runtime, **changes))


def training_lines(run: Path) -> list[TrainingMetrics]:
    return [line for line in MetricsFile(run).lines() if isinstance(line, TrainingMetrics)]


def evaluation_lines(run: Path) -> list[EvaluationMetrics]:
    return [line for line in MetricsFile(run).lines() if isinstance(line, EvaluationMetrics)]


def losses(run: Path) -> list[float]:
    return [line.targets["mlm"].loss for line in training_lines(run)]


def state_at(run: Path, step: int) -> TrainState:
    return read_state(checkpoint_folder(run, step)).state


def weights_at(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(checkpoint_folder(run, step) / "model.safetensors")


def moments_at(run: Path, step: int, key: str = "exp_avg") -> list[torch.Tensor]:
    states = torch.load(checkpoint_folder(run, step) / "optimizer.pt", weights_only=True)["state"]
    return [states[index][key] for index in range(len(states))]


def assert_same_model(one: Path, other: Path, step: int) -> None:
    left, right = weights_at(one, step), weights_at(other, step)
    assert left.keys() == right.keys() and len(left) > 20
    assert all(torch.equal(left[key], right[key]) for key in left)
    left, right = moments_at(one, step), moments_at(other, step)
    assert len(left) == len(right) > 20
    assert all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def assert_same_metrics(one: Path, other: Path) -> None:
    """Asserts that losses agree to rounding and tokens exactly, step by step, and the evaluations as well."""
    left, right = MetricsFile(one).lines(), MetricsFile(other).lines()
    assert [(line.step, line.tokens) for line in left] == [(line.step, line.tokens) for line in right]
    assert losses(other) == pytest.approx(losses(one), rel=1e-5)
    held_out = [[line.held_out.whole.loss for line in evaluation_lines(run)] for run in (one, other)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-5)
    assert len(losses(one)) == 12 and len(held_out[0]) == 4


def stop_after(monkeypatch, step: int, error: type[BaseException] = SystemExit) -> None:
    """Makes the run die at the beginning of the update after `step`."""
    update = loop.one_update

    def dying(task, run, batches, state):
        if state.step == step:
            raise error
        return update(task, run, batches, state)

    monkeypatch.setattr(loop, "one_update", dying)


@pytest.fixture(scope="session")
def died(inputs, tmp_path_factory) -> Path:
    """A run that died in step 7, with its newest checkpoint at step 4."""
    return once(ground(tmp_path_factory) / "died", lambda run: train_until(twelve_steps(inputs, run), 6))


@pytest.fixture
def half_trained(settings, died) -> PretrainConfig:
    """The settings of a copy of that run."""
    shutil.copytree(died, settings.run)
    return settings


def train_until(config: PretrainConfig, step: int) -> PretrainConfig:
    """Trains until the run dies at the beginning of the update after `step`, and returns its settings."""
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, step)
        with pytest.raises(SystemExit):
            train_here(config)
    return config


def signal_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process send itself SIGTERM before the update that follows `step`."""
    update = loop.one_update

    def interrupted(task, run, batches, state):
        if state.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(task, run, batches, state)

    monkeypatch.setattr(loop, "one_update", interrupted)
