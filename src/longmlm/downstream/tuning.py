"""Fine-tuning of an arm's model by transformers' Trainer, and what the model predicts.

FOLDER/
    checkpoints/            the best and the last epoch, from which a trial that was broken off resumes
    model/                  the model of the best epoch, as transformers loads it
"""

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    TokenClassificationPipeline,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.artifacts.provenance import Provenance
from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.folds import Fold
from longmlm.downstream.models import FirstTokens, encoder_in_place, load_arm_model
from longmlm.downstream.planned import TRAINING, TrialConfig
from longmlm.downstream.reading import (
    IGNORED,
    Example,
    classification_examples,
    collate,
    labelling_examples,
    set_reading,
    windows_overlap,
)
from longmlm.downstream.scores import Output, main_score, predictions_of
from longmlm.errors import ModelError
from longmlm.folders import rewritten_folder
from longmlm.model.architecture import position_offset, set_dropout
from longmlm.model.carried import Carried, save_model
from longmlm.model.loading import LoadedModel, library_errors
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.pretrain import ComputePrecision

STATE = "trainer_state.json"  # the file that Trainer writes last into a checkpoint, but for a copy of its arguments
SCORE, BEST = "eval_score", "eval_best"
TIE = 1e-6  # percentage points per epoch, so that of equal epochs the latest is the best
MAX_ROUNDING = 0.05  # of a probability, in bf16
NO_LIMIT = 10**9  # tokenizers without a limit report a larger one


@dataclass(slots=True)
class ArmModel:
    """An arm's model on the documents of a corpus.

    The vectors of a frozen `encoder` are computed once per document; in the model, FirstTokens stands in for it.
    `known` are the documents that were read, by their numbers.
    """

    config: TrialConfig
    corpus: LabelledCorpus
    loaded: LoadedModel
    precision: ComputePrecision
    num_parameters: int
    encoder: PreTrainedModel | None = None
    known: dict[int, Example] = field(default_factory=dict)

    @classmethod
    def load(cls, config: TrialConfig, corpus: LabelledCorpus) -> "ArmModel":
        """Returns the model with a new head, on the GPU if there is one; raises ModelError for one that cannot read."""
        loaded = load_arm_model(config.arm, config.task.kind, corpus, config.seed)
        model, tokenizer = cast(Any, loaded.model), loaded.tokenizer
        if tokenizer.pad_token_id is None:
            raise ModelError(f"the tokenizer of {config.arm.model} has no padding token: set pad_token in its files")
        set_reading(tokenizer, config.arm, input_length(config, loaded))
        if config.recipe.dropout is not None:
            set_dropout(model, config.recipe.dropout)
        if config.runtime.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if config.runtime.num_threads:
            torch.set_num_threads(config.runtime.num_threads)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        encoder = model.base_model.requires_grad_(False).eval() if config.arm.frozen else None
        own = cls(config, corpus, loaded, resolved_precision(config.recipe.precision), model.num_parameters(), encoder)
        if encoder is not None:
            setattr(model, model.base_model_prefix, FirstTokens(encoder).requires_grad_())
        return own

    @property
    def num_tokens(self) -> int:
        """How many tokens an input may have, special tokens included."""
        return self.loaded.tokenizer.model_max_length

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        return cast(int, self.loaded.tokenizer.pad_token_id)

    def examples(self, numbers: Sequence[int]) -> list[Example]:
        """Returns the documents of these numbers as the arm reads them."""
        new = [number for number in numbers if number not in self.known]
        read = labelling_examples if self.config.task.kind == "labelling" else classification_examples
        for number, example in zip(new, read(self.corpus, new, self.loaded.tokenizer, self.config.arm), strict=True):
            vectors = self._vectors_of(example) if self.encoder else None
            self.known[number] = replace(example, vectors=vectors)
        return [self.known[number] for number in numbers]

    def predict(self, numbers: Sequence[int]) -> list[Output]:
        """Returns for each document the probability of each label, or the spans that the released pipeline finds."""
        self.loaded.model.eval()
        if self.config.task.kind == "labelling":
            return self._spans([self.corpus.documents[number].text for number in numbers])
        found: list[Output] = []
        size = self.config.runtime.documents_per_micro_batch
        for first in range(0, len(numbers), size):
            batch = self.batch(self.examples(numbers[first : first + size]))
            found += list(self.probabilities(batch))
        return found

    def batch(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Returns the arguments of a forward pass on examples, with their labels."""
        batch = collate(examples, self.pad)
        if self.config.arm.reads != "chunks":
            batch.pop("owners", None)
        return batch

    @torch.inference_mode()
    def probabilities(self, batch: dict[str, Tensor]) -> np.ndarray:
        """Returns the probability of each label for each document of a batch."""
        model = cast(Any, self.loaded.model)
        inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
        with self._autocast():
            logits = model(**inputs).logits.float()
        return (logits.sigmoid() if self.corpus.is_multilabel else logits.softmax(-1)).cpu().numpy()

    def _spans(self, texts: Sequence[str]) -> list[Output]:
        options = {"stride": windows_overlap(self.num_tokens)} if self.config.arm.reads == "chunks" else {}
        find = cast(Any, TokenClassificationPipeline)(
            model=self.loaded.model,
            tokenizer=self.loaded.tokenizer,
            device=self.loaded.model.device,
            aggregation_strategy="simple",
            **options,
        )
        return [tuple(_span_in(text, entity) for entity in find(text)) for text in texts]

    @torch.no_grad()
    def _vectors_of(self, example: Example) -> Tensor:
        """Returns the last hidden states of the first tokens of a document's inputs, in fp32 on the CPU."""
        encoder, size, states = cast(Any, self.encoder), self.config.runtime.documents_per_micro_batch, []
        for first in range(0, len(example.inputs), size):
            part = collate([replace(example, inputs=example.inputs[first : first + size])], self.pad)
            inputs = {name: part[name].to(encoder.device) for name in ("input_ids", "attention_mask")}
            with self._autocast():
                states.append(encoder(**inputs).last_hidden_state[:, 0].float().cpu())
        return torch.cat(states)

    def _autocast(self) -> torch.autocast:
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.loaded.model.device.type, half, enabled=self.precision != "no")


def input_length(config: TrialConfig, loaded: LoadedModel) -> int:
    """Returns how many tokens an input of the arm may have, special tokens included.

    Raises ModelError if the model reads fewer, or does not say how many it reads.
    """
    encoder, arm = cast(PreTrainedModel, loaded.model.base_model), config.arm
    positions = getattr(encoder.config, "max_position_embeddings", None)
    limits = [positions - position_offset(encoder)] if positions else []
    if loaded.tokenizer.model_max_length < NO_LIMIT:
        limits.append(loaded.tokenizer.model_max_length)
    if arm.length is None and not limits:
        raise ModelError(f"{arm.model} does not say how many tokens it reads: set arms.{config.arm_name}.length")
    is_absolute = getattr(encoder.config, "position_biased_input", True)  # DeBERTa's are relative
    if arm.length is not None and positions and is_absolute and arm.length > limits[0]:
        raise ModelError(
            f"{arm.model} reads {limits[0]} tokens, but arms.{config.arm_name}.length is {arm.length}: lower it, or "
            "extend the model first"
        )
    return arm.length or min(limits)


def fine_tune(folder: Path, model: ArmModel, fold: Fold) -> tuple[float, ...]:
    """Trains the model and saves that of the best epoch; returns the development score after each epoch, in percent.

    Resumes from the last complete checkpoint. Raises ModelError if the model cannot be trained on these documents.
    """
    examples = model.examples(fold.train)
    _check_forward(model, fold.train)
    tuner = _Tuner(
        model=model.loaded.model,
        args=_arguments(folder / TRAINING, model.config, model.precision),
        data_collator=model.batch,
        train_dataset=cast(Any, examples),
        eval_dataset=cast(Any, fold.dev),
        compute_loss_func=_loss,
        callbacks=[_Patience(model.config.recipe.patience, 2 * TIE * (model.config.num_epochs or 0))],
    )
    tuner.arm = model
    tuner.model_accepts_loss_kwargs = False
    tuner.remove_callback(PrinterCallback)
    tuner.train(resume_from_checkpoint=_last_complete(folder / TRAINING))
    scores = tuple(line[SCORE] for line in tuner.state.log_history if SCORE in line)
    with encoder_in_place(model.loaded.model, model.encoder) if model.encoder else nullcontext():
        _save(model, folder / MODEL)
    return scores


class _Tuner(Trainer):
    """A Trainer that scores development documents as they are predicted after training."""

    arm: ArmModel

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Returns the task's main metric, in percent."""
        model, numbers = self.arm, cast(Sequence[int], self.eval_dataset)
        predictions = predictions_of(model.corpus, numbers, model.predict(numbers))
        score = main_score(predictions, model.config.task.kind, model.corpus.is_multilabel)
        epoch = round(self.state.epoch or 0)
        print(f"epoch {epoch} of {model.config.num_epochs}: {score:.2f} % on the development documents", flush=True)
        metrics = {SCORE: score, BEST: score + TIE * epoch}
        self.log({**metrics})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Patience(EarlyStoppingCallback):
    """Ends training when the score has not risen for some epochs, but not in the first half of them."""

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **more: Any
    ) -> None:
        """Counts an epoch, and ends training."""
        super().on_evaluate(args, state, control, metrics, **more)
        if 2 * round(state.epoch or 0) < args.num_train_epochs:
            control.should_training_stop = False


def _arguments(folder: Path, config: TrialConfig, precision: ComputePrecision) -> TrainingArguments:
    recipe, runtime = config.recipe, config.runtime
    sizes = range(1, min(runtime.documents_per_micro_batch, recipe.documents_per_step) + 1)
    size = max(number for number in sizes if recipe.documents_per_step % number == 0)
    return TrainingArguments(
        output_dir=str(folder),
        learning_rate=config.learning_rate or 0.0,
        num_train_epochs=config.num_epochs or 0,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=recipe.documents_per_step // size,
        warmup_steps=recipe.warmup_fraction,
        weight_decay=recipe.weight_decay,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        seed=config.seed % 2**32,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=BEST,
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,
        logging_strategy="epoch",
        disable_tqdm=True,
        report_to=config.tracking.tracker or "none",
        run_name=config.name,
        project=config.tracking.project,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """Returns the loss of a micro-batch, as its share of the mean over all targets of the step."""
    logits: Tensor = outputs.logits.float()
    if labels.is_floating_point():
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    else:
        loss = nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=IGNORED
        )
    return loss / (labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


def _check_forward(model: ArmModel, numbers: Sequence[int]) -> None:
    """Raises ModelError if a forward pass fails, or the head of a frozen encoder reads more than first tokens."""
    failure = f"{model.config.arm.model} fails on inputs of up to {model.num_tokens:,} tokens"
    with library_errors(failure):
        longest = max(numbers, key=lambda number: len(model.corpus.documents[number].text))
        [found] = model.predict([longest])
    if model.encoder is None or model.config.arm.reads == "chunks":
        return
    whole = model.batch([replace(*model.examples([longest]), vectors=None)])
    with encoder_in_place(model.loaded.model, model.encoder):
        expected = model.probabilities(whole)
    if not np.allclose(cast(np.ndarray, found), expected, atol=MAX_ROUNDING):
        raise ModelError(f"{model.config.arm.model} has a head that reads more than the first token: remove frozen")


def _span_in(text: str, entity: dict[str, Any]) -> LabelledSpan:
    """Returns what the pipeline found, without the white space with which a byte-level token may begin."""
    start, end = entity["start"], entity["end"]
    return LabelledSpan(end - len(text[start:end].lstrip()), end, entity["entity_group"])


def _last_complete(folder: Path) -> str | None:
    """Returns the last checkpoint, without those that a killed process left incomplete, which are removed."""
    while folder.is_dir() and (last := get_last_checkpoint(str(folder))) is not None:
        if Path(last, STATE).is_file():
            return last
        shutil.rmtree(last)
    return None


def _save(model: ArmModel, folder: Path) -> None:
    """Writes the model as transformers loads it, with its history, in place of an earlier one."""
    loaded = model.loaded
    history = loaded.provenance_of_run(str(model.config.arm.model))
    with rewritten_folder(folder) as partial:
        save_model(loaded.model, loaded.tokenizer, Carried(), partial)
        artifact.write(partial / Provenance.FILE, history)
