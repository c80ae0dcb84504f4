"""Distillation of the lowest layers: with full attention, they learn to reproduce the states of windowed attention.

Attention relies on position alone to tell near tokens from far ones mainly in the lowest layers: a window there, over
repeated positions, keeps nearly all of the accuracy that extension loses otherwise. The teacher is the base model with
its trained positions repeated, whose tokens attend to a window; the student has a position for every token, and full
attention. Both have only their lowest layers, and no head. On rows without labels, some tokens masked as in training,
the student's position table and layers learn to reproduce the teacher's states. The layers above stay as they are: the
long model is a stock model of the base model's class.

Example: MiniLM, 6 layers, is extended from 512 positions to 1536. In each step, a row of 1536 tokens goes through the 3
lowest layers of teacher and student; the loss is the sum of the squared differences of their states, 1536 x 384
numbers, divided by the sum of the teacher's squares.
"""

import copy
import hashlib
import json
import pickle
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.artifacts.provenance import Distilled, Extension
from longmlm.batches.collate import MlmBatch
from longmlm.batches.steps import Recipe, StepBatches, check_rows_fit_model
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import DataError
from longmlm.model.architecture import layers_of
from longmlm.model.loading import LoadedModel
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.position_table import position_table_of
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.progress import Progress
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import ComputePrecision
from longmlm.temporary import replaced_file

WARMUP_SHARE, BETAS, MAX_NORM = 0.1, (0.9, 0.98), 1.0
STEPS_PER_SAVE = 20
LAST_STEPS = 20  # whose mean error is reported


def distill(
    student: LoadedModel, teacher: LoadedModel, extension: Extension, rows: Rows, unfinished: Path
) -> tuple[LoadedModel, Distilled]:
    """Returns the student with trained lowest layers and position table, and what they were distilled on.

    `teacher` is the base model with tiled positions. `unfinished` is a file in which steps are saved: those of an
    interrupted call with the same models, rows and settings are not repeated. Raises DataError for rows of another
    tokenizer or length.
    """
    recipe, precision = extension.distillation, resolved_precision(extension.distillation.precision)
    num_layers = student.model.config.num_hidden_layers
    layers = recipe.layers_of(num_layers)
    window = recipe.window_of(extension.base_positions)
    batches = _batches(student, extension, rows)
    tokens_per_step = batches.rows_per_step * rows.row_length * rows.mean_fill
    lowest_of_teacher = LowestLayers.of(teacher.model, layers, precision)
    use_window(lowest_of_teacher.objective.model, Window(window, 0, layers))
    run = _Run(
        lowest_of_teacher,
        LowestLayers.of(student.model, layers, precision),
        num_steps=max(1, round(recipe.num_tokens / tokens_per_step)),
        learning_rate=recipe.learning_rate,
        key=hashlib.sha256(json.dumps([asdict(extension), rows.sha256]).encode()).hexdigest(),
    )
    run.load(unfinished)
    with Progress("distill", run.num_steps, "step", initial=run.step) as progress:
        while run.step < run.num_steps:
            run.update(batches)
            progress.advance()
            if run.step % STEPS_PER_SAVE == 0 or run.step == run.num_steps:
                run.save(unfinished)
    model = copy.deepcopy(student.model)
    model.load_state_dict(model.state_dict() | run.student.objective.model.state_dict())
    errors = run.errors[-LAST_STEPS:]
    distilled = Distilled(
        layers=layers,
        window=window,
        precision=precision,
        tokens=run.tokens,
        flop_ratio=recipe.flop_ratio(num_layers),
        rows_sha256=rows.sha256,
        relative_error=sum(errors) / len(errors),
    )
    return replace(student, model=model), distilled


def _batches(student: LoadedModel, extension: Extension, rows: Rows) -> StepBatches:
    """Returns the rows of each step, one per micro-batch, masked as in training."""
    vocabulary = vocabulary_of_pretrained(student.tokenizer, extension.base.name)
    check_rows_fit_model(rows, vocabulary, extension.num_positions)
    if rows.row_length < extension.num_positions:
        raise DataError(
            f"the rows have {rows.row_length} tokens, and the long model {extension.num_positions} positions, of which "
            "the last would not be trained: prepare rows of that length"
        )
    num_rows = max(1, round(extension.distillation.batch_tokens / (rows.row_length * rows.mean_fill)))
    recipe = Recipe(extension.seed, num_rows, Masking(), vocabulary.maskable, pad=None)
    return StepBatches(rows, recipe, rank=0, num_processes=1, rows_per_micro_batch=1)


@dataclass(frozen=True, slots=True)
class LowestLayers:
    """A copy of a model with its lowest layers only; `trained` are their parameters, and the position table."""

    objective: MlmObjective
    trained: tuple[nn.Parameter, ...]

    @classmethod
    def of(cls, model: PreTrainedModel, num_layers: int, precision: ComputePrecision) -> "LowestLayers":
        """Returns a copy of the model without the layers above, on the GPU if there is one."""
        lowest = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
        cast(nn.Module, lowest).to("cuda" if torch.cuda.is_available() else "cpu")
        layers = layers_of(cast(PreTrainedModel, lowest.base_model))
        del layers[num_layers:]
        trained = (cast(nn.Parameter, position_table_of(lowest).rows.weight), *layers.parameters())
        use_packed_attention(lowest)
        return cls(MlmObjective(lowest, precision), trained)

    def states(self, batch: MlmBatch) -> Tensor:
        """Returns the hidden states of the last of these layers."""
        with self.objective.autocast(batch.input_ids):
            return self.objective.hidden_states(batch).float()


@dataclass(slots=True)
class _Run:
    """The training of the student; `tokens` counts those of the steps so far, `errors` has the loss of each."""

    teacher: LowestLayers
    student: LowestLayers
    num_steps: int
    learning_rate: float
    key: str
    step: int = 0
    tokens: int = 0
    errors: list[float] = field(default_factory=list)
    adam: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        for parameter in self.student.trained:
            parameter.requires_grad_()
        self.adam = torch.optim.Adam(self.student.trained, lr=self.learning_rate, betas=BETAS)

    def update(self, batches: StepBatches) -> None:
        """Makes one step: Adam with warm-up and linear decay, on the mean error of the rows."""
        progress = self.step / self.num_steps
        rate = min(1.0, (progress + 1 / self.num_steps) / WARMUP_SHARE) * (1 - progress)
        self.adam.param_groups[0]["lr"] = self.learning_rate * rate
        device, error = self.student.trained[0].device, 0.0
        micro_batches = batches[self.step * batches.rows_per_step]
        for micro_batch in micro_batches:
            batch = micro_batch.to(device)
            with torch.no_grad():
                target = self.teacher.states(batch)
            loss = (self.student.states(batch) - target).square().sum() / target.square().sum() / len(micro_batches)
            loss.backward()
            error += loss.item()
            self.tokens += batch.num_tokens
        nn.utils.clip_grad_norm_(self.student.trained, MAX_NORM)
        self.adam.step()
        self.adam.zero_grad()
        self.errors.append(error)
        self.step += 1

    def save(self, path: Path) -> None:
        """Writes what `load` needs to go on from this step."""
        numbers = {"key": self.key, "step": self.step, "tokens": self.tokens, "errors": self.errors}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as partial:
            torch.save({**numbers, "trained": self.student.trained, "adam": self.adam.state_dict()}, partial)

    def load(self, path: Path) -> None:
        """Goes on from the step that `save` wrote, if it is of the same run and can be read."""
        with suppress(OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError):
            saved = torch.load(path, map_location=self.student.trained[0].device, weights_only=True)
            if saved["key"] == self.key:
                self.adam.load_state_dict(saved["adam"])
                with torch.no_grad():
                    for parameter, value in zip(self.student.trained, saved["trained"], strict=True):
                        parameter.copy_(value)
                self.step, self.tokens, self.errors = saved["step"], saved["tokens"], saved["errors"]
