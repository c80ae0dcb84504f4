import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaTokenizer

from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.held_out import HeldOut
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, PretrainRuntime, Start
from longmlm.stages.pretrain import pretrain
from longmlm.training import tracking

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXT = Path(__file__).parents[2] / "assets" / "text" / "demo.jsonl"


@pytest.fixture(scope="session")
def ground(tmp_path_factory) -> Path:
    """A folder with a tokenizer, rows of 32 tokens and the architecture of a tiny RoBERTa with dropout."""
    folder = tmp_path_factory.mktemp("ground")
    lines = TEXT.read_text(encoding="utf-8").splitlines()[:160:20]
    text = [json.loads(line)["text"][:4000] for line in lines]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in text), encoding="utf-8")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(text, vocab_size=400, special_tokens=SPECIAL)
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
    prepare_rows(recipe, load_vocabulary(recipe.tokenizer), folder / "rows")
    return folder


@pytest.fixture
def settings(ground, tmp_path) -> PretrainConfig:
    """Twelve steps from an untrained model, less than an epoch."""
    return PretrainConfig(
        run=str(tmp_path / "run"),
        rows=str(ground / "rows"),
        start=Start(architecture=str(ground / "architecture.json"), tokenizer=str(ground / "tokenizer")),
        recipe=PretrainRecipe(
            num_steps=12,
            batch_tokens=256,
            learning_rate=1e-3,
            warmup_steps=2,
            precision="no",
            seed=7,
            held_out=HeldOut(max_rows=20),
        ),
        runtime=PretrainRuntime(
            rows_per_micro_batch=4, num_threads=1, log_every_steps=1, evaluate_every_steps=4, save_every_steps=4
        ),
    )


@pytest.fixture
def train() -> Callable[[PretrainConfig], Path]:
    """Runs the stage in this process and returns the run folder."""

    def run(config: PretrainConfig) -> Path:
        AcceleratorState._reset_state(reset_partial_state=True)
        pretrain(config)
        AcceleratorState._reset_state(reset_partial_state=True)
        return Path(config.run)

    return run


@pytest.fixture
def stranger(monkeypatch, tmp_path) -> None:
    """Nobody is logged in at W&B, what a client leaves at home lies below tmp_path, and a busy machine may be slow."""
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 120.0)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
