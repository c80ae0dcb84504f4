"""Fine-tuning of an arm's model by transformers' Trainer.

FOLDER/
    checkpoints/            the best and the last epoch, from which a trial that was broken off resumes
    model/                  the model of the best epoch, as transformers loads it
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.artifacts.provenance import Provenance
from longmlm.downstream.arm_model import ArmModel
from longmlm.downstream.folds import Fold
from longmlm.downstream.planned import TRAINING, TrialConfig
from longmlm.downstream.reading import IGNORED
from longmlm.downstream.scores import main_score, predictions_of
from longmlm.errors import TrainingError
from longmlm.folders import rewritten_folder
from longmlm.model.carried import Carried, save_model
from longmlm.model.loading import library_errors
from longmlm.runtime.memory import is_out_of_memory
from longmlm.settings.pretrain import ComputePrecision

STATE = "trainer_state.json"  # the file that Trainer writes last into a checkpoint, but for a copy of its arguments
WARMUP, WEIGHT_DECAY = 0.1, 0.01  # a share of the steps, and AdamW's
SCORE, BEST = "eval_score", "eval_best"
TIE = 1e-6  # percentage points per epoch, so that of equal epochs the latest is the best


def fine_tune(folder: Path, model: ArmModel, fold: Fold) -> tuple[float, ...]:
    """Trains the model and saves that of the best epoch; returns the development score after each epoch, in percent.

    Resumes from the last complete checkpoint. Raises ModelError if the model cannot be trained on these documents,
    TrainingError if memory runs out or a loss is not finite.
    """
    longest = model.corpus.longest(fold.train)
    remedy = "" if model.precision == "no" else '; set precision = "no" in [recipe] to compute in fp32'
    with library_errors(f"{model.config.arm.model} fails on inputs of up to {model.num_tokens:,} tokens{remedy}"):
        model.predict([longest])
    tuner = _Tuner(
        model=model.loaded.model,
        args=_arguments(folder / TRAINING, model.config, model.precision),
        data_collator=model.batch,
        train_dataset=cast(Any, model.examples(fold.train)),
        eval_dataset=cast(Any, fold.dev),
        compute_loss_func=_loss,
        callbacks=[_Patience(model.config.recipe.patience, 2 * TIE * (model.config.num_epochs or 0))],
    )
    tuner.arm = model
    tuner.model_accepts_loss_kwargs = False
    tuner.remove_callback(PrinterCallback)
    try:
        tuner.train(resume_from_checkpoint=_last_complete(folder / TRAINING))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            "out of memory: lower documents_per_micro_batch in [runtime], or set activation_checkpointing = true there"
        ) from error
    scores = tuple(line[SCORE] for line in tuner.state.log_history if SCORE in line)
    _save(model, folder / MODEL)
    return scores


class _Tuner(Trainer):
    """A Trainer that scores development documents as they are predicted after training."""

    arm: ArmModel

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Returns the task's main metric, in percent."""
        model, numbers = self.arm, cast(Sequence[int], self.eval_dataset)
        predictions = predictions_of(model.corpus, numbers, model.predict(numbers))
        score = main_score(predictions, model.corpus)
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
        warmup_steps=WARMUP,
        weight_decay=WEIGHT_DECAY,
        use_cpu=not torch.cuda.is_available(),  # without it, bf16 is refused where there is no GPU
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
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """Returns the loss of a micro-batch, as its share of the mean over all targets of the step.

    Raises TrainingError if it is not finite.
    """
    logits: Tensor = outputs.logits.float()
    if labels.is_floating_point():
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    else:
        loss = nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=IGNORED
        )
    if not loss.isfinite():
        raise TrainingError('the loss is not finite: lower the learning rate, or set precision = "no" in [recipe]')
    return loss / (labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


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
    loaded.model._keys_to_ignore_on_save = set()  # noqa: SLF001 - see freeze_encoder
    with rewritten_folder(folder) as partial:
        save_model(loaded.model, loaded.tokenizer, Carried(), partial)
        artifact.write(partial / Provenance.FILE, history)
