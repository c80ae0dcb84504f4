"""Fine-tuning as a run of the training loop, with a score and a checkpoint after every epoch.

An epoch is as many steps as read every document; its last step may read some of the next epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Int64
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import TrainingRecord
from longmlm.artifacts.run import MicroBatch
from longmlm.batches.examples import Example, characters_read, examples_of
from longmlm.batches.tasks import TaskBatches, collate_examples
from longmlm.data.folds import Fold
from longmlm.data.labelled import LabelledCorpus
from longmlm.errors import ModelError, counted
from longmlm.evaluation.measure import inference
from longmlm.evaluation.packing import check_packed_examples
from longmlm.evaluation.task_evaluation import TaskEvaluation
from longmlm.model.architecture import position_offset, set_dropout
from longmlm.model.cost import Cost, Work, computed_tokens, finetuning_cost
from longmlm.model.encoding import TaskObjective
from longmlm.model.loading import LoadedModel, library_errors
from longmlm.model.mlm import checkpoint_activations
from longmlm.model.task_models import load_task_model, task_objective, training_examples
from longmlm.runtime.launch import seed_process
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.settings.pretrain import ComputePrecision, PretrainRecipe, PretrainRuntime
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import run_precision
from longmlm.training.micro_batch import rows_per_evaluation_batch, rows_per_micro_batch
from longmlm.training.run import Run, RunRecord, Task
from longmlm.training.run_folder import newest_verified, read_state
from longmlm.training.vectors import read_vectors

NO_LIMIT = 10**9  # tokenizers without a limit report a larger one


@dataclass(frozen=True, slots=True)
class FinetuningTrial:
    """A trial: its folder, its settings, also as text, the documents, and what it runs on."""

    folder: Path
    config: DownstreamTrialConfig
    settings: str
    corpus: LabelledCorpus
    fold: Fold
    accelerator: Accelerator

    def examples(self, loaded: LoadedModel, corpus: LabelledCorpus) -> tuple[Example, ...]:
        """Returns the documents of a corpus as the arm reads them."""
        length = input_length(self.config, loaded.model, loaded.tokenizer)
        return examples_of(corpus, self.config.task.kind, loaded.tokenizer, self.config.arm.reads, length)

    def characters_read(self, loaded: LoadedModel, text: str) -> Int64[np.ndarray, "tokens 2"]:
        """Returns start and end of each token of a text that the arm reads."""
        length = input_length(self.config, loaded.model, loaded.tokenizer)
        return characters_read(text, loaded.tokenizer, self.config.arm.reads, length)


def open_run(trial: FinetuningTrial) -> tuple[Task, Run, Path | None]:
    """Returns the task, the run that executes it, and the checkpoint to resume from, whose weights are loaded."""
    config, accelerator = trial.config, trial.accelerator
    newest = newest_verified(trial.folder)
    saved = read_state(newest.folder) if newest.folder else None
    precision, notes = run_precision(config.recipe.precision, saved, newest.folder)
    loaded = load_task_model(config, trial.corpus, str(newest.folder) if newest.folder else None)
    if config.recipe.dropout is not None:
        set_dropout(loaded.model, config.recipe.dropout)
    if config.runtime.activation_checkpointing:
        checkpoint_activations(loaded.model)
    objective = task_objective(config, loaded, precision).to(accelerator.device)
    examples, pad = trial.examples(loaded, trial.corpus), padding_token(config, loaded.tokenizer)
    check_longest_input(config, objective, examples, pad)
    read_vectors(config.vectors, objective)
    train_examples = training_examples(config, [examples[number] for number in trial.fold.train])
    notes += check_packed_examples(objective, train_examples, pad)
    batches = TaskBatches(
        examples=train_examples,
        seed=config.seed,
        rows_per_step=min(len(train_examples), config.recipe.documents_per_step),
        pad=None if objective.reads_packed_batches else pad,
        min_in_micro_batch=2 if config.task.kind == "similarity" else 1,
    )
    recipe = recipe_of(config, batches.steps_per_epoch)
    run = Run(
        folder=trial.folder,
        accelerator=accelerator,
        backend=PlainBackend.wrap(accelerator, objective.train(), replace(recipe, precision=precision)),
        runtime=runtime_of(config, batches.steps_per_epoch),
        cost=cost_of_trial(config, loaded, examples, precision),
        peak_tokens_per_second=None,
        prefers_latest=True,
    )
    evaluation = TaskEvaluation(
        objective=objective,
        kind=config.task.kind,
        corpus=trial.corpus,
        examples=tuple(examples[number] for number in trial.fold.dev),
        pad=pad,
        rows_per_batch=rows_per_evaluation_batch(run),
        patience_steps=config.recipe.patience * batches.steps_per_epoch,
        min_steps=-(-config.num_epochs // 2) * batches.steps_per_epoch,
    )
    num_rows = documents_per_micro_batch(trial, run, batches, saved.state.micro_batch if saved else None)
    record = record_of(trial, loaded, recipe, precision, is_new=newest.folder is None)
    seed_process(config.seed, accelerator.process_index)
    for note in (*loaded.notes, *newest.skipped, *notes):
        accelerator.print(note)
    return Task(batches.in_micro_batches_of(num_rows), evaluation, record), run, newest.folder


def check_longest_input(
    config: DownstreamTrialConfig, objective: TaskObjective, examples: Sequence[Example], pad: int
) -> None:
    """Raises ModelError if a forward pass of the longest and the shortest input, in a batch as in training, fails."""
    inputs = sorted((tokens for example in examples for tokens in example.inputs), key=len)
    both = replace(examples[0], inputs=(inputs[-1], inputs[0]), num_first=1)
    batch = collate_examples([both], None if objective.reads_packed_batches else pad)
    failure = f"{config.arm.model} fails on an input of {counted(len(inputs[-1]), 'token')}"
    batch, precision = batch.to(objective.model.device), objective.precision
    try:
        with library_errors(failure), inference(objective):
            objective.outputs(batch)
    except ModelError as error:
        if precision == "no":
            raise
        objective.precision = "no"
        with library_errors(failure), inference(objective):
            objective.outputs(batch)
        raise ModelError(f'{error}; in fp32 it does not: set precision = "no" in [recipe]') from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the size of micro-batches depends on the memory that is free


def documents_per_micro_batch(trial: FinetuningTrial, run: Run, batches: TaskBatches, saved: MicroBatch | None) -> int:
    """Returns what rows_per_micro_batch does; for similarity, the number of pairs that fit, on a CPU too."""
    longest = 1 if trial.config.task.kind == "similarity" else max(map(len, batches.examples))
    return rows_per_micro_batch(run, batches.rows_per_step, longest, saved)


def record_of(
    trial: FinetuningTrial, loaded: LoadedModel, recipe: PretrainRecipe, precision: ComputePrecision, is_new: bool
) -> RunRecord:
    """Returns what checkpoints record; a trial with other settings does not resume from them."""
    config = trial.config
    length = input_length(config, loaded.model, loaded.tokenizer)
    training = TrainingRecord(
        row_length=length, steps=0, tokens=0, precision=precision, rows_sha256=config.settings_sha256
    )
    provenance = loaded.provenance_of_run(str(config.arm.model)) if is_new else loaded.provenance
    return RunRecord(loaded.tokenizer, trial.settings, recipe, provenance, training)


def cost_of_trial(
    config: DownstreamTrialConfig, loaded: LoadedModel, examples: Sequence[Example], precision: ComputePrecision
) -> Cost:
    """Returns the cost of the longest document."""
    work = Work(
        row_length=max(len(tokens) for example in examples for tokens in example.inputs),
        selected_fraction=0.0,
        is_half=precision != "no",
        is_checkpointed=config.runtime.activation_checkpointing,
    )
    num_tokens = max(sum(computed_tokens(loaded.model, len(tokens)) for tokens in one.inputs) for one in examples)
    return finetuning_cost(loaded.model, work, num_tokens)


def recipe_of(config: DownstreamTrialConfig, steps_per_epoch: int) -> PretrainRecipe:
    """Returns the recipe of a trial: the rate rises during warm-up and then decays to zero over all epochs."""
    recipe, num_steps = config.recipe, config.num_epochs * steps_per_epoch
    return PretrainRecipe(
        num_steps=num_steps,
        batch_tokens=recipe.documents_per_step,  # documents play the part of rows
        learning_rate=config.learning_rate,
        warmup_steps=round(recipe.warmup_fraction * num_steps),
        weight_decay=recipe.weight_decay,
        dropout=recipe.dropout,
        precision=recipe.precision,
        seed=config.seed,
    )


def runtime_of(config: DownstreamTrialConfig, steps_per_epoch: int) -> PretrainRuntime:
    """Returns the runtime of a trial, which is scored and saved after every epoch."""
    every = {"evaluate_every_steps": steps_per_epoch, "save_every_steps": steps_per_epoch}
    return replace(config.runtime, **every, stop_when_recovered=False)


def input_length(config: DownstreamTrialConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns how many tokens an input of the arm may have, special tokens included.

    Raises ModelError if the model reads fewer, or does not say how many it reads.
    """
    encoder, arm = cast(PreTrainedModel, model.base_model), config.arm
    positions = getattr(encoder.config, "max_position_embeddings", None)
    limits = [positions - position_offset(encoder)] if positions else []
    if tokenizer.model_max_length < NO_LIMIT:
        limits.append(tokenizer.model_max_length)
    if arm.length is None and not limits:
        raise ModelError(f"{arm.model} does not say how many tokens it reads: set arms.{config.arm_name}.length")
    is_absolute = getattr(encoder.config, "position_biased_input", True)  # DeBERTa's are relative
    if arm.length is not None and positions and is_absolute and arm.length > limits[0]:
        raise ModelError(
            f"{arm.model} reads {limits[0]} tokens, but arms.{config.arm_name}.length is {arm.length}: lower it, or "
            "extend the model first"
        )
    return arm.length or min(limits)


def padding_token(config: DownstreamTrialConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the id of the padding token; raises ModelError if there is none."""
    if tokenizer.pad_token_id is None:
        raise ModelError(f"the tokenizer of {config.arm.model} has no padding token: set pad_token in its files")
    return int(tokenizer.pad_token_id)
