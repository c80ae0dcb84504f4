"""Masked-token accuracy on held-out rows: longmlm compared with transformers' Trainer.evaluate, on the same masks.

Trainer.evaluate computes the loss and, as in run_mlm.py, the accuracy of the top predictions. Rows are random tokens;
three in four fill 90 to 100 % of the row length, the others 10 to 90 %. For the Trainer they are masked beforehand, for
longmlm in the timed part. Both must find the same loss and accuracy, up to rounding in bf16.

    python benchmarks/evaluation.py [--quick]
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from paired import Comparison, Way, in_a_process, run
from steps import BASE, SMALL, TOKENIZER, MaskedRows, Shape, trainer_arguments
from transformers import (
    AutoTokenizer,
    DataCollatorForTokenClassification,
    EvalPrediction,
    RobertaForMaskedLM,
    Trainer,
)

from longmlm.data.row import LooseRows, Row
from longmlm.data.vocabulary import load_vocabulary
from longmlm.evaluation.frozen import FrozenRows, whole
from longmlm.evaluation.measure import measure
from longmlm.model.mlm import MlmObjective
from longmlm.settings.masking import HeldOut

NUM_BASE_POSITIONS, ROWS_PER_BATCH = 512, 8
TOLERANCE = 0.01  # relative for the loss; for the accuracy, a share of the selected tokens


def model_of(shape: Shape) -> RobertaForMaskedLM:
    """Returns a model that predicts the token that it sees, which is right for unchanged selected tokens."""
    model = shape.roberta().eval()
    torch.nn.init.eye_(model.lm_head.dense.weight)
    return model


def frozen_rows(shape: Shape) -> FrozenRows:
    """Returns the rows under their masks."""
    vocabulary, generator = load_vocabulary(TOKENIZER), np.random.default_rng(0)
    special, rows = vocabulary.special, []
    for number in range(shape.num_rows):
        fill = generator.uniform(0.9, 1) if number % 4 else generator.uniform(0.1, 0.9)
        content = generator.integers(300, 8000, int(fill * shape.row_length) - 2)
        row = np.concatenate([[special.cls], content, [special.sep]])
        rows.append(Row(row, np.array([1]), np.array([0])))
    return FrozenRows(LooseRows(tuple(rows)), HeldOut(), vocabulary.maskable, special, ROWS_PER_BATCH)


def ours(shape: Shape) -> tuple[FrozenRows, Callable[[], tuple[float, float]]]:
    """Returns the rows, and a function that measures loss and share of correct predictions with longmlm."""
    frozen, objective = frozen_rows(shape), MlmObjective(model_of(shape), "bf16")

    def work() -> tuple[float, float]:
        measured = measure(objective, frozen, whole, NUM_BASE_POSITIONS, accelerator=None).whole
        assert measured.loss is not None
        assert measured.accuracy is not None
        return measured.loss, measured.accuracy / 100

    return frozen, work


def theirs(shape: Shape) -> tuple[FrozenRows, Callable[[], tuple[float, float]]]:
    """Returns the rows, and a function that measures loss and share of correct predictions with the Trainer."""
    frozen = frozen_rows(shape)
    arguments = trainer_arguments(per_device_eval_batch_size=ROWS_PER_BATCH)
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    trainer = Trainer(
        model_of(shape),
        arguments,
        DataCollatorForTokenClassification(tokenizer),
        eval_dataset=MaskedRows(map(frozen.masked, frozen.row_ids)),
        compute_metrics=_share_correct,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
    )

    def work() -> tuple[float, float]:
        found = trainer.evaluate()
        return found["eval_loss"], found["eval_correct"]

    return frozen, work


def _share_correct(prediction: EvalPrediction) -> dict[str, float]:
    predicted, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    return {"correct": float((predicted == labels)[labels != -100].mean())}  # noqa: PLR2004 - not selected


def num_tokens_after(prepare: Callable[[Shape], Any], shape: Shape) -> Callable[[], int]:
    """Returns a function that runs the evaluation and returns the number of tokens without padding."""
    frozen, work = prepare(shape)
    num_tokens = sum(len(frozen.rows[row_id]) for row_id in frozen.row_ids)

    def measured() -> int:
        work()
        return num_tokens

    return measured


def check_same_result(shape: Shape) -> None:
    """Raises AssertionError unless both measure the same."""
    (own_loss, own_share), (loss, share) = (prepare(shape)[1]() for prepare in (ours, theirs))
    print(f"loss {own_loss:.4f} and {loss:.4f}, correct {100 * own_share:.3f} % and {100 * share:.3f} %", flush=True)
    assert abs(own_loss / loss - 1) < TOLERANCE
    assert abs(own_share - share) < TOLERANCE


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    rows = f"{shape.num_rows} rows of up to {shape.row_length} tokens, {ROWS_PER_BATCH} per batch, bf16"
    own = Way("longmlm", partial(num_tokens_after, ours, shape))
    peer = Way("transformers Trainer", partial(num_tokens_after, theirs, shape))
    return Comparison(f"{shape.model_label}, {rows}", own, peer, aim=1.5)


if __name__ == "__main__":
    base, small = (replace(shape, num_rows=16) for shape in (BASE, SMALL))
    in_a_process(check_same_result, replace(small, num_rows=8))
    run("evaluation", __doc__ or "", [comparison(base)], [comparison(small)])
