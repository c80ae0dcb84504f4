"""Whether a base model predicts anything: more than a model that always names the commonest token would.

If 6 of 100 selected tokens are ".", always naming "." is right for 6 %. A trained model reaches 30 to 60 %; one with a
random head, or with the head or the tokenizer of another vocabulary, reaches less than 1 %.
"""

import numpy as np

from longmlm.artifacts.accuracy import Accuracy
from longmlm.errors import ModelError
from longmlm.evaluation.frozen import FrozenRows, Viewer


def check_predicts(base: Accuracy, frozen: FrozenRows, view: Viewer, name: str) -> None:
    """Raises ModelError if the accuracy of the base model in this view is no accuracy that could be recovered."""
    commonest = commonest_share(frozen, view)
    if base.accuracy is not None and base.accuracy <= commonest:
        raise ModelError(
            f"the base model {name} predicts nothing: {base.accuracy:.2f} % of the masked tokens are right, and always "
            f"naming the commonest one would be right for {commonest:.2f} %: check its MLM head and tokenizer, or "
            "train it at its own length first, with extension = false"
        )


def commonest_share(frozen: FrozenRows, view: Viewer) -> float:
    """Returns the share of the commonest token among the selected ones in percent; 0 if none is selected."""
    shown = [one.masked.labels for row_id in frozen.row_ids for one in view(frozen.masked(row_id))]
    labels = np.concatenate([np.zeros(0, np.int64), *shown])
    return 100 * int(np.bincount(labels).max()) / len(labels) if len(labels) else 0.0
