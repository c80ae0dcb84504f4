"""Compares a training step of longmlm with one of transformers' Trainer, for RoBERTa-base in bf16.

Both mask rows of random tokens, run the forward and backward pass, clip the gradient and update AdamW. The Trainer uses
DataCollatorForLanguageModeling and RobertaForMaskedLM, as run_mlm.py does, with the same dropout, precision and batch
size. Before that, both train without dropout on rows under the same masks and must have the same losses.

    python benchmarks/training_step.py [--quick]
"""

from dataclasses import replace
from functools import partial

from equal_loss import losses
from paired import Comparison, Way, options, print_results
from steps import BASE, SMALL, Shape, ours, trainer_way

NUM_CHECKED = 5  # steps whose losses are compared
AIMS = {  # by row length and dropout: the target speed ratio, and memory ratio if there is one
    (1536, 0.0): (1.5, None),
    (1536, 0.1): (2.5, 2.0),
}


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    aim, memory_aim = AIMS.get((shape.row_length, shape.dropout), (None, None))
    own, peer = (
        Way("longmlm", partial(ours, shape)),
        trainer_way("transformers Trainer", shape, shape.roberta),
    )
    return Comparison(shape.label, own, peer, aim, memory_aim)


def main() -> None:
    """Measures, and prints the JSON line."""
    is_quick, num_rounds = options(__doc__ or "")
    lengths = (1536,) if is_quick else (1536, 512, 1024, 2048)
    shapes = [
        replace(SMALL if is_quick else BASE, row_length=length, dropout=dropout)
        for length in lengths
        for dropout in (0.1, 0.0)
    ]
    checked = losses(replace(shapes[0], dropout=0.0, num_steps=NUM_CHECKED))
    results = [comparison(shape).measure(num_rounds) for shape in shapes]
    print_results("training step", results, losses=checked)


if __name__ == "__main__":
    main()
