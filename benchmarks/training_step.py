"""Compares a training step of longmlm with one of transformers' Trainer, for RoBERTa-base in bf16.

Both mask rows of random tokens, run the forward and backward pass, clip the gradient and update AdamW. The Trainer uses
DataCollatorForLanguageModeling and RobertaForMaskedLM, as run_mlm.py does, with the same dropout, precision and batch
size.

    python benchmarks/training_step.py [--quick]
"""

from dataclasses import replace
from functools import partial

from paired import Comparison, Way, run
from steps import BASE, SMALL, Shape, ours, trainer_way

AIMS = {0.0: (1.5, None), 0.1: (2.5, 2.0)}  # by dropout: the target speed ratio, and memory ratio if there is one


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    aim, memory_aim = AIMS[shape.dropout]
    own, peer = (
        Way("longmlm", partial(ours, shape)),
        trainer_way("transformers Trainer", shape, shape.roberta),
    )
    return Comparison(shape.label, own, peer, aim, memory_aim)


if __name__ == "__main__":
    full = [
        replace(BASE, row_length=length, dropout=dropout)
        for length in (1536, 512, 1024, 2048)
        for dropout in (0.1, 0.0)
    ]
    quick = [replace(SMALL, dropout=dropout) for dropout in (0.1, 0.0)]
    run("training step", __doc__ or "", [comparison(shape) for shape in full], [comparison(shape) for shape in quick])
