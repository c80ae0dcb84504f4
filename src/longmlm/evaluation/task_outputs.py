"""What a model predicts for labelled documents: in batches of similar length, then in the documents' order."""

from collections.abc import Callable, Sequence

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object

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
    accelerator: Accelerator | None = None,
    before_row: Callable[[], None] = heartbeat,
) -> list[np.ndarray]:
    """Returns `objective.outputs` of each example, in their order.

    Examples are sorted by length before they are cut into batches. The ranks share the examples, and each gets the
    outputs of all; every rank gets the same number of them, some more than once. `before_row` is called before a
    forward pass, once for each of its examples.
    """
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    order = sorted(range(len(examples)), key=lambda number: -len(examples[number]))
    num_shared = -(-len(order) // num_processes) * num_processes
    share = [order[index % len(order)] for index in range(rank, num_shared, num_processes)]
    device = accelerator.device if accelerator else objective.model.device

    def predict(numbers: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        chosen = [examples[number] for number in numbers]
        batch = collate_examples(chosen, None if objective.reads_packed_batches else pad)
        return list(zip(numbers, objective.outputs(batch.to(device)), strict=True))

    with inference(objective):
        results = results_of_batches(predict, share, BatchSize(rows_per_batch), before_row, accelerator)
        outputs = [output for _, batch in results for output in batch]
    by_number = dict(gather_object(outputs) if num_processes > 1 else outputs)
    return [by_number[number] for number in range(len(examples))]
