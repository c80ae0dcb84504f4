"""Whether a base model predicts anything: more than always predicting the most frequent token would.

If 6 of 100 selected tokens are ".", always predicting "." is right for 6 %. A trained model reaches 30 to 60 %; one
with a random head, or with the head or the tokenizer of another vocabulary, less than 1 %.
"""

import numpy as np

from longmlm.artifacts.accuracy import Accuracy
from longmlm.errors import ModelError, counted
from longmlm.evaluation.frozen import FrozenRows, Viewer

MIN_SELECTED = 200  # of fewer tokens, the most frequent one may have a large share by chance


def check_predicts(base: Accuracy, frozen: FrozenRows, view: Viewer, name: str) -> None:
    """Raises ModelError if the base model, with this accuracy in this view, is no better than a constant guess.

    Of fewer than 200 selected tokens nothing is concluded.
    """
    commonest = commonest_share(frozen, view)
    if base.accuracy is not None and base.num_selected >= MIN_SELECTED and base.accuracy <= commonest:
        raise ModelError(
            f"the base model {name} predicts nothing: of {counted(base.num_selected, 'masked token')} it predicts "
            f"{base.accuracy:.2f} %, and always predicting the most frequent token would be right for "
            f"{commonest:.2f} %: check its MLM head and tokenizer, or train it at its own length first, with "
            "extension = false"
        )


def commonest_share(frozen: FrozenRows, view: Viewer) -> float:
    """Returns the share of the most frequent token among the selected ones in percent; 0 if none is selected."""
    shown = [one.masked.labels for row_id in frozen.row_ids for one in view(frozen.masked(row_id))]
    labels = np.concatenate([np.zeros(0, np.int64), *shown])
    return 100 * int(np.bincount(labels).max()) / len(labels) if len(labels) else 0.0
