"""Compares a training step of longmlm with one of transformers' Trainer, for RoBERTa-base in bf16.

Both mask rows of random tokens, run the forward and backward pass, clip the gradient and update AdamW. The Trainer uses
DataCollatorForLanguageModeling and RobertaForMaskedLM, as run_mlm.py does, with the same dropout, precision and batch
size.

    python benchmarks/training_step.py [--quick]
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from paired import Comparison, Way, run
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
)

from longmlm.batches.collate import collate
from longmlm.batches.masking import mask_row
from longmlm.data.rows import Row
from longmlm.data.vocabulary import load_vocabulary
from longmlm.model.cpu_attention import use_cpu_attention
from longmlm.model.mlm import MlmObjective, set_dropout
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend

TOKENIZER = "src/longmlm/bundled/roberta-mini"  # token ids are drawn from this vocabulary; the model's may be larger
RATE = 1e-5
AIMS = {0.0: (1.5, None), 0.1: (2.5, 2.0)}  # by dropout: the target speed ratio, and memory ratio if there is one


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a RoBERTa model, its dropout, and the number and length of rows in a step."""

    name: str
    num_layers: int
    width: int
    vocabulary: int
    row_length: int
    dropout: float
    num_rows: int = 1
    num_steps: int = 2

    @property
    def label(self) -> str:
        """The shape in words."""
        model = f"{self.name} ({self.num_layers} x {self.width}, vocabulary {self.vocabulary:,})"
        return f"{model}, {self.num_rows} x {self.row_length} tokens, dropout {self.dropout}, bf16"

    def model(self) -> RobertaForMaskedLM:
        """Returns an untrained model with this dropout."""
        torch.manual_seed(0)
        config = RobertaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.width // 64,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.row_length + 2,
        )
        model = RobertaForMaskedLM(config).train()
        set_dropout(model, self.dropout)
        return model

    def rows(self) -> np.ndarray:
        """Returns random token ids for the timed steps and one warm-up step."""
        size = ((self.num_steps + 1) * self.num_rows, self.row_length)
        return np.random.default_rng(0).integers(300, 8000, size)


def ours(shape: Shape) -> Callable[[], int]:
    """Returns a function that runs longmlm's training steps, after one warm-up step."""
    vocabulary, tokens = load_vocabulary(TOKENIZER), shape.rows()
    recipe = PretrainRecipe(num_steps=shape.num_steps, batch_tokens=shape.row_length, learning_rate=RATE)
    model = shape.model()
    use_cpu_attention(model)
    objective = MlmObjective(model, "bf16")
    backend = PlainBackend.wrap(Accelerator(cpu=True), objective.train(), replace(recipe, precision="bf16"))

    def step(number: int) -> None:
        row_ids = range(number * shape.num_rows, (number + 1) * shape.num_rows)
        rows = [Row(tokens[row_id], np.array([1]), np.array([0])) for row_id in row_ids]
        masked = [
            mask_row(row, vocabulary.maskable, Masking(), 0, 0, row_id)
            for row, row_id in zip(rows, row_ids, strict=True)
        ]
        batch = collate(masked, vocabulary.special.pad)
        loss, _ = backend.forward(batch)
        backend.backward(loss / batch.num_targets)
        backend.step(RATE)

    step(0)

    def work() -> int:
        for number in range(1, shape.num_steps + 1):
            step(number)
        return shape.num_steps * shape.num_rows * shape.row_length

    return work


class Rows(Dataset[dict[str, list[int]]]):
    """Rows in the format of run_mlm.py."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.tokens[index].tolist()}


def theirs(shape: Shape) -> Callable[[], int]:
    """Returns a function that runs the Trainer's steps, after one warm-up step."""
    model, tokens = shape.model(), shape.rows()
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def train(rows: np.ndarray) -> None:
        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=shape.num_rows,
            max_steps=len(rows) // shape.num_rows,
            learning_rate=RATE,
            bf16=True,
            use_cpu=True,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, collator, Rows(rows)).train()

    train(tokens[: shape.num_rows])

    def work() -> int:
        train(tokens[shape.num_rows :])
        return shape.num_steps * shape.num_rows * shape.row_length

    return work


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    aim, memory_aim = AIMS[shape.dropout]
    own, peer = Way("longmlm", partial(ours, shape)), Way("transformers Trainer", partial(theirs, shape))
    return Comparison(shape.label, own, peer, aim, memory_aim)


if __name__ == "__main__":
    base = Shape("RoBERTa-base", 12, 768, 50265, 1536, 0.1)
    small = Shape("small", 4, 256, 8192, 1536, 0.1)
    full = [
        replace(base, row_length=length, dropout=dropout) for length in (1536, 512, 1024, 2048) for dropout in (0.1, 0)
    ]
    quick = [replace(small, dropout=dropout) for dropout in (0.1, 0.0)]
    run("training step", __doc__ or "", [comparison(shape) for shape in full], [comparison(shape) for shape in quick])
