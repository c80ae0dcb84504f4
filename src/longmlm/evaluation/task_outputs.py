"""What a model predicts for labelled documents: in batches of similar length, then in the documents' order."""

from collections.abc import Callable, Sequence

import numpy as np

from longmlm.batches.examples import Example
from longmlm.batches.tasks import collate_examples
from longmlm.evaluation.measure import inference
from longmlm.model.encoding import TaskObjective
from longmlm.runtime.memory import BatchSize, results_of_batches
from longmlm.runtime.watchdog import heartbeat


def outputs_of(
    objective: TaskObjective,
    examples: Sequence[Example],
    pad: int,
    rows_per_batch: int,
    before_row: Callable[[], None] = heartbeat,
) -> list[np.ndarray]:
    """Returns `objective.outputs` of each example, in their order.

    Examples are sorted by length before they are cut into batches. `before_row` is called before a forward pass, once
    for each of its examples.
    """
    order = sorted(range(len(examples)), key=lambda number: -len(examples[number]))

    def predict(numbers: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        chosen = [examples[number] for number in numbers]
        batch = collate_examples(chosen, None if objective.reads_packed_batches else pad)
        return list(zip(numbers, objective.outputs(batch.to(objective.model.device)), strict=True))

    with inference(objective):
        results = results_of_batches(predict, order, BatchSize(rows_per_batch), before_row, may_repeat=True)
        by_number = dict(output for _, batch in results for output in batch)
    return [by_number[number] for number in range(len(examples))]
