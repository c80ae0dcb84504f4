"""Embeddings of texts, their similarity, and the contrastive objective that tunes them."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize
from transformers import AutoModel

from longmlm.batches.tasks import TaskBatch
from longmlm.model.chunks import without_pooler
from longmlm.model.encoding import LossSum, TaskObjective, input_lengths, tokens_of
from longmlm.model.loading import LoadedModel
from longmlm.model.task_loading import load_for_task
from longmlm.settings.downstream import Arm

SCALE = 20.0  # that sentence-transformers multiplies cosines by


def load_embedder(arm: Arm) -> LoadedModel:
    """Returns the arm's encoder without its pooler, which embeddings do not pass.

    Raises ModelError as load_for_task does.
    """
    loaded = load_for_task(AutoModel, str(arm.model), arm.revision)
    without_pooler(loaded.model)
    return loaded


class SimilarityObjective(TaskObjective):
    """An encoder whose mean vectors of two texts are compared.

    It is tuned on positive pairs, whose targets are the numbers of their texts. Their negatives are the other pairs of
    the micro-batch.
    """

    def forward(self, batch: TaskBatch) -> LossSum:
        """Returns the contrastive loss of the batch."""
        return contrastive_loss(*self.vectors(batch), batch.targets)

    def outputs(self, batch: TaskBatch) -> list[np.ndarray]:
        """Returns the cosine of each pair, between -1 and 1."""
        return [np.array(cosine) for cosine in cosine_similarity(*self.vectors(batch)).tolist()]

    def vectors(self, batch: TaskBatch) -> tuple[Float[Tensor, "pairs width"], Float[Tensor, "pairs width"]]:
        """Returns the vectors of the first texts, and of the second ones, in fp32."""
        with self.autocast(batch.input_ids):
            states = tokens_of(self.hidden_states(batch), batch)
        means = mean_vectors(states, texts_of_tokens(batch), 2 * batch.num_documents)
        return means[::2], means[1::2]


def texts_of_tokens(batch: TaskBatch) -> Int64[Tensor, " tokens"]:
    """Returns the number of each token's text: 2 i for the first text of pair i, 2 i + 1 for the second."""
    owners, device = batch.owners, batch.input_ids.device
    num_inputs = owners.bincount(minlength=batch.num_documents)
    before = (num_inputs.cumsum(0) - num_inputs)[owners]
    number_in_pair = torch.arange(len(owners), device=device) - before
    is_second = number_in_pair >= torch.tensor(batch.num_first).to(device, non_blocking=True)[owners]
    return (2 * owners + is_second).repeat_interleave(input_lengths(batch))


def mean_vectors(
    states: Float[Tensor, "tokens width"], texts: Int64[Tensor, " tokens"], num_texts: int
) -> Float[Tensor, "num_texts width"]:
    """Returns each text's mean over its tokens, special ones included, as sentence-transformers' mean pooling does.

    Chunks of a text thereby weigh as much as they have tokens. `texts` has the number of each token's text.
    """
    sums = states.new_zeros(num_texts, states.shape[-1], dtype=torch.float32).index_add(0, texts, states.float())
    return sums / texts.bincount(minlength=num_texts).unsqueeze(-1)


def contrastive_loss(
    first: Float[Tensor, "pairs width"], second: Float[Tensor, "pairs width"], texts: Int64[Tensor, "pairs 2"]
) -> LossSum:
    """Returns the summed loss of choosing each first text's second text among those of all pairs.

    It is multiple negatives ranking (Henderson et al. 2017, section 4.4) with cosines times SCALE. `texts` has the same
    number for equal texts: pairs that share a text are not each other's negatives. A choice is correct if the cosine is
    the highest.
    """
    scores = SCALE * normalize(first) @ normalize(second).T
    scores = scores.masked_fill(_shares_text(texts), -torch.inf)
    own = torch.arange(len(scores), device=scores.device)
    return LossSum(cross_entropy(scores, own, reduction="sum"), (scores.argmax(-1) == own).sum())


def _shares_text(texts: Int64[Tensor, "pairs 2"]) -> Bool[Tensor, "pairs pairs"]:
    """Returns for each pair which other pairs have one of its texts."""
    shares = (texts[:, None, :, None] == texts[None, :, None, :]).flatten(2).any(-1)
    return shares.fill_diagonal_(False)
