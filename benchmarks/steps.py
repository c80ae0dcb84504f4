"""Training steps of RoBERTa on random rows: by longmlm, and by transformers' Trainer."""

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from paired import Way, result
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PrinterCallback,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.data.row import Maskable, Row
from longmlm.data.vocabulary import load_vocabulary
from longmlm.model.architecture import set_dropout
from longmlm.model.cost import Work, cost_of
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import ComputePrecision, PretrainRecipe
from longmlm.training.backend import PlainBackend

TOKENIZER = "src/longmlm/bundled/roberta-mini"  # token ids are drawn from this vocabulary; the model's may be larger
RATE = 1e-5
WARM_UP_STEPS = 2  # the first allocates memory and prepares operations, the second still does some of it


def roberta_config(num_layers: int, width: int, vocabulary: int, num_positions: int) -> RobertaConfig:
    """Returns the configuration of a RoBERTa with heads of 64 units and the usual dropout of 0.1."""
    return RobertaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=num_positions + 2,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a RoBERTa model, its dropout, and the number and length of rows in a step.

    Documents have `document_tokens` on average, at most four times as many; by default, a row is one document.
    """

    name: str
    num_layers: int
    width: int
    vocabulary: int
    row_length: int
    dropout: float
    num_rows: int = 1
    num_steps: int = 2
    document_tokens: int | None = None
    isolates_documents: bool = False

    @property
    def model_label(self) -> str:
        """The model in words."""
        return f"{self.name} ({self.num_layers} x {self.width}, vocabulary {self.vocabulary:,})"

    @property
    def label(self) -> str:
        """The shape in words."""
        return f"{self.model_label}, {self.num_rows} x {self.row_length} tokens, dropout {self.dropout}, bf16"

    @property
    def tokens_per_step(self) -> int:
        """The tokens of one step."""
        return self.num_rows * self.row_length

    def config(self) -> RobertaConfig:
        """Returns the configuration, with the usual dropout of 0.1."""
        return roberta_config(self.num_layers, self.width, self.vocabulary, self.row_length)

    def roberta(self) -> RobertaForMaskedLM:
        """Returns an untrained model with this dropout."""
        torch.manual_seed(0)
        model = RobertaForMaskedLM(self.config()).train()
        set_dropout(model, self.dropout)
        return model

    @functools.cache  # noqa: B019 - shapes are few
    def without_weights(self) -> RobertaForMaskedLM:
        """Returns the same without weights. Nothing is computed, so that the process may fork."""
        with torch.device("meta"):
            return self.roberta()

    @functools.cache  # noqa: B019
    def rows(self) -> np.ndarray:
        """Returns random token ids for the warm-up steps and the timed ones."""
        size = ((WARM_UP_STEPS + self.num_steps) * self.num_rows, self.row_length)
        return np.random.default_rng(0).integers(300, 8000, size)

    def document_starts(self, row_id: int) -> np.ndarray:
        """Returns where the documents of a row begin, with exponentially distributed lengths."""
        mean = self.document_tokens or 4 * self.row_length
        lengths = np.random.default_rng(row_id).exponential(mean, self.row_length).clip(8, 4 * mean).astype(int)
        starts = np.cumsum([1, *lengths])
        return starts[starts < self.row_length - 1] if self.document_tokens else starts[:1]

    def masked_row(self, row_id: int, maskable: Maskable, masking: Masking) -> MaskedRow:
        """Returns a row under longmlm's mask of the first epoch; rows repeat after the last."""
        row_id %= len(self.rows())
        starts = self.document_starts(row_id)
        row = Row(self.rows()[row_id], starts, np.zeros_like(starts))
        return mask_row(row, maskable, masking, 0, 0, row_id)


class MaskedRows(Dataset[dict[str, list[int]]]):
    """Rows masked beforehand, in the format of run_mlm.py."""

    def __init__(self, masked_rows: Iterable[MaskedRow]) -> None:
        self.items = []
        for masked in masked_rows:
            labels = np.full(len(masked.row), -100)
            labels[masked.selected] = masked.labels
            self.items.append({"input_ids": masked.row.input_ids.tolist(), "labels": labels.tolist()})

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.items[index]


BASE = Shape("RoBERTa-base", 12, 768, 50265, 1536, 0.1)
LARGE = Shape("RoBERTa-large", 24, 1024, 50265, 1536, 0.1)
SMALL = Shape("small", 4, 256, 8192, 1536, 0.1)


def random_batch(objective: MlmObjective, num_rows: int, row_length: int, num_selected: int) -> MlmBatch:
    """Returns rows of random tokens, some of them selected; packed if the objective reads packed batches."""
    tokens = torch.randint(5, 8000, (num_rows * row_length,))
    selected = torch.randperm(len(tokens))[:num_selected].sort().values
    row_lengths = (row_length,) * num_rows if objective.reads_packed_batches else ()
    input_ids = tokens.view(1 if row_lengths else num_rows, -1)
    return MlmBatch(input_ids, None, selected, tokens[selected], row_lengths=row_lengths)


def own_step(
    shape: Shape, model: PreTrainedModel, precision: ComputePrecision = "bf16", masking: Masking | None = None
) -> Callable[[], Tensor]:
    """Returns a function that runs longmlm's next training step, on the GPU if any, and returns its loss in nats."""
    masking = masking or Masking()
    vocabulary = load_vocabulary(TOKENIZER)
    recipe = PretrainRecipe(num_steps=1, batch_tokens=shape.row_length, learning_rate=RATE, precision=precision)
    accelerator, numbers = Accelerator(), itertools.count()
    use_packed_attention(model)
    backend = PlainBackend.wrap(accelerator, MlmObjective(model, precision, shape.isolates_documents).train(), recipe)

    def step() -> Tensor:
        first = next(numbers) * shape.num_rows
        row_ids = range(first, first + shape.num_rows)
        masked = [shape.masked_row(row_id, vocabulary.maskable, masking) for row_id in row_ids]
        pad = None if backend.objective.reads_packed_batches else model.config.pad_token_id
        batch = collate(masked, pad, isolates_documents=shape.isolates_documents).to(accelerator.device)
        loss = backend.forward(batch)["mlm"][0] / len(batch.labels)
        backend.backward(loss)
        backend.step(RATE)
        return loss.detach()

    return step


def flop_per_token(shape: Shape) -> float:
    """Returns the FLOP per token of a training step of longmlm, by the cost model."""
    work = Work(shape.row_length, Masking().selected_fraction, is_half=True, has_gpu=False)
    return cost_of(shape.without_weights(), work).flop_per_token


def ours(shape: Shape) -> Callable[[], int]:
    """Returns a function that runs longmlm's training steps, after the warm-up steps."""
    step = own_step(shape, shape.roberta())
    for _ in range(WARM_UP_STEPS):
        step()

    def work() -> int:
        for _ in range(shape.num_steps):
            step()
        return shape.num_steps * shape.tokens_per_step

    return work


class Rows(Dataset[dict[str, list[int]]]):
    """Rows in the format of run_mlm.py."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.tokens[index].tolist()}


class StepTimes(TrainerCallback):
    """Records when each step ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """Records the time."""
        self.times.append(time.perf_counter())


def trainer_arguments(**arguments: Any) -> TrainingArguments:
    """Returns the arguments of a Trainer that works on the CPU in bf16, and shows and saves nothing."""
    return TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        bf16=True,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **arguments,
    )


def trainer_way(name: str, shape: Shape, new_model: Callable[[], PreTrainedModel]) -> Way:
    """Returns the Trainer on this model as a way to compare with."""
    return Way(name, partial(_trainer, shape, new_model), result)


def _trainer(shape: Shape, new_model: Callable[[], PreTrainedModel]) -> Callable[[], float]:
    """Returns a function that trains a model with the Trainer, as run_mlm.py does, and returns the tokens/s.

    Neither the warm-up steps nor the start of the Trainer are counted.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    arguments = trainer_arguments(
        per_device_train_batch_size=shape.num_rows,
        max_steps=WARM_UP_STEPS + shape.num_steps,
        learning_rate=RATE,
        logging_strategy="no",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    loop, steps = Trainer(new_model(), arguments, collator, Rows(shape.rows())), StepTimes()
    loop.remove_callback(PrinterCallback)
    loop.add_callback(steps)

    def work() -> float:
        loop.train()
        return shape.num_steps * shape.tokens_per_step / (steps.times[-1] - steps.times[WARM_UP_STEPS - 1])

    return work
