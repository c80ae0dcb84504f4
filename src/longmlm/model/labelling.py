"""Labelling of tokens: transformers' own heads, on padded or packed batches."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from longmlm.batches.examples import IGNORED, bio_labels
from longmlm.batches.tasks import TaskBatch
from longmlm.errors import counted
from longmlm.model.encoding import LossSum, TaskObjective, input_lengths, tokens_of
from longmlm.model.loading import LoadedModel
from longmlm.model.task_loading import config_of_labels, load_for_task
from longmlm.model.window_attention import window_of
from longmlm.settings.downstream import Arm


def load_labeller(arm: Arm, labels: tuple[str, ...], seed: int, keeps_head: bool = False) -> LoadedModel:
    """Returns the arm's model with a new head for the BIO classes of the labels, or with its own, if it is a labeller.

    Raises ModelError as load_for_task does.
    """
    names = bio_labels(labels)
    loaded = load_for_task(
        AutoModelForTokenClassification,
        str(arm.model),
        arm.revision,
        seed,
        keeps_head,
        config_of_labels(names),
    )
    window = window_of(loaded.model.config)
    has_globals = window is not None and window.num_global > 0
    if keeps_head or not has_globals or window.covers(loaded.model.config.max_position_embeddings):
        return loaded
    note = f"{arm.model} has {counted(window.num_global, 'global token')}: to release a labeller, extend with none"
    return replace(loaded, notes=(*loaded.notes, note))


class LabellingObjective(TaskObjective):
    """A classifier of tokens; the targets of special tokens are IGNORED."""

    def forward(self, batch: TaskBatch) -> LossSum:
        """Returns the cross-entropy summed over labelled tokens, and how many of them are predicted correctly."""
        logits = self.logits(batch)
        loss = cross_entropy(logits, batch.targets, reduction="sum", ignore_index=IGNORED)
        return LossSum(loss, (logits.argmax(-1) == batch.targets).sum())

    def outputs(self, batch: TaskBatch) -> list[np.ndarray]:
        """Returns the likeliest class of each token of a document's inputs, special tokens included."""
        owners = batch.owners.repeat_interleave(input_lengths(batch))
        parts = self.logits(batch).argmax(-1).split(owners.bincount(minlength=batch.num_documents).tolist())
        return [part.cpu().numpy() for part in parts]

    def logits(self, batch: TaskBatch) -> Float[Tensor, "tokens classes"]:
        """Returns the fp32 logits of all tokens, one input after the other."""
        with self.autocast(batch.input_ids):
            logits: Tensor = self.model(**self.model_inputs(batch)).logits
        return tokens_of(logits, batch).float()
