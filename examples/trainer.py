"""Trains a long model with transformers' Trainer on the rows, masks and batches of longmlm.

Make the rows and the long model with `longmlm run mine.toml --until extend`. Then

    python examples/trainer.py out/mine/rows out/mine/long trained --steps 3000

makes the same updates as `longmlm pretrain` with the same settings: in fp32 and without dropout, the losses are equal
up to rounding. Comments below explain what this needs. The trained model is written to trained/model.
"""

import argparse

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoTokenizer, Trainer, TrainingArguments

import longmlm
from longmlm.settings.masking import Masking


def main() -> None:
    """Trains, and writes a stock model and trainer_state.json, which has the loss of each step."""
    options = arguments()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForMaskedLM.from_pretrained(options.model, dtype=torch.float32)
    if options.dropout is not None:  # names in BERT and RoBERTa; other families have other names
        dropout = {"hidden_dropout_prob": options.dropout, "attention_probs_dropout_prob": options.dropout}
        model = AutoModelForMaskedLM.from_pretrained(options.model, dtype=torch.float32, **dropout)

    # Batches of masked rows in the order of longmlm's loop. There are as many as the run needs: the Trainer then trains
    # for a single epoch, in which all steps have the same size.
    batches = longmlm.read_rows(
        options.rows,
        tokenizer,
        rows_per_batch=options.rows_per_batch,
        seed=options.seed,
        masking=Masking(selected_fraction=options.selected_fraction),
    ).take(options.steps * options.batches_per_step)

    settings = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=1,  # an item of the dataset is a batch already
        gradient_accumulation_steps=options.batches_per_step,
        train_sampling_strategy="sequential",  # the rows are permuted already
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=batches,
        data_collator=lambda items: items[0],
        optimizers=optimizer_and_schedule(model, options),
        compute_loss_func=loss_of_step,
    )
    trainer.train()
    trainer.save_state()
    longmlm.export(model, tokenizer, f"{options.output}/model")


def loss_of_step(
    outputs: dict[str, torch.Tensor], labels: torch.Tensor, num_items_in_batch: torch.Tensor
) -> torch.Tensor:
    """Returns this batch's part of the mean over all selected tokens of the step.

    Most masked language models in transformers compute the mean over each batch, even if batches are accumulated.
    """
    logits = outputs["logits"].flatten(0, 1).float()
    return cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum") / num_items_in_batch


def optimizer_and_schedule(
    model: torch.nn.Module, options: argparse.Namespace
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Returns AdamW with RoBERTa's constants and weight decay for matrices only, and linear warm-up and decay.

    The rate is positive in the first and in the last step, whereas the schedules of transformers start at zero.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.98), eps=1e-6)

    def share(step: int) -> float:
        if step < options.warmup_steps:
            return (step + 1) / options.warmup_steps
        return (options.steps - step) / (options.steps - options.warmup_steps)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def arguments() -> argparse.Namespace:
    """Returns the options of the command line, named like longmlm's settings where these exist."""
    parser = argparse.ArgumentParser(description="Trains a long model with transformers' Trainer.")
    parser.add_argument("rows", help="folder of packed rows")
    parser.add_argument("model", help="the long model")
    parser.add_argument("output", help="folder for the losses and the trained model")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rows-per-batch", type=int, default=8)
    parser.add_argument("--batches-per-step", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--warmup-steps", type=int, default=150)
    parser.add_argument("--selected-fraction", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--dropout", type=float, help="by default that of the model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
