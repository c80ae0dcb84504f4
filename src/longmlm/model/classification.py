"""Classification of documents: transformers' own heads, or a head over chunks."""

from dataclasses import replace
from hashlib import sha256
from typing import Any, Self, assert_never, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from longmlm.batches.tasks import TaskBatch, documents_of
from longmlm.model.chunks import ChunkClassifier
from longmlm.model.encoding import LossSum, TaskObjective, input_starts
from longmlm.model.families import LEARNED_FAMILIES, LearnedFamily
from longmlm.model.loading import LoadedModel
from longmlm.model.task_loading import config_of_labels, load_for_task
from longmlm.settings.downstream import Arm
from longmlm.settings.pretrain import ComputePrecision

SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"  # transformers' problem types


def load_classifier(
    arm: Arm, labels: tuple[str, ...], is_multilabel: bool, seed: int, keeps_head: bool = False
) -> LoadedModel:
    """Returns the arm's model with a new head, initialised with `seed`, or with its own, if it is a trained classifier.

    Raises ModelError as load_for_task does.
    """
    values = {**config_of_labels(labels), "problem_type": MULTI_LABEL if is_multilabel else SINGLE_LABEL}
    name, revision = str(arm.model), arm.revision
    if arm.reads != "chunks":
        return load_for_task(AutoModelForSequenceClassification, name, revision, seed, keeps_head, values)
    values["chunk_pooling"] = arm.pooling
    if keeps_head:
        return load_for_task(ChunkClassifier, name, revision, seed, keeps_head, values)
    loaded = load_for_task(AutoModel, name, revision, seed)
    torch.manual_seed(seed)
    return replace(loaded, model=ChunkClassifier.around(loaded.model, **values))


class ClassificationObjective(TaskObjective):
    """A classifier of documents; a frozen one trains its head only.

    With `cached`, by a hash of the document's tokens, a frozen encoder computes the vectors of each document once, and
    one document at a time, so that they do not depend on the batch in which it comes first. Where the head reads first
    tokens, the encoder's last hidden states are computed without padding if they can be; other stock models compute
    their logits themselves.
    """

    def __init__(self, model: PreTrainedModel, precision: ComputePrecision = "no", is_frozen: bool = False) -> None:
        super().__init__(model, precision)
        self.is_frozen = is_frozen
        self.cached: dict[str, Tensor] | None = None
        if is_frozen:
            self.encoder.requires_grad_(requires_grad=False)
            if pooler := getattr(self.encoder, "pooler", None):  # a part of the head
                pooler.requires_grad_(requires_grad=True)

    @property
    def caches_vectors(self) -> bool:
        """Whether training reads vectors of the encoder that are computed once."""
        has_vectors = isinstance(self.model, ChunkClassifier) or self.model.config.model_type in LEARNED_FAMILIES
        return self.is_frozen and has_vectors

    def train(self, mode: bool = True) -> Self:
        """Sets training mode, except for a frozen encoder, which has no dropout."""
        super().train(mode)
        if self.is_frozen:
            self.encoder.eval()
        return self

    def forward(self, batch: TaskBatch) -> LossSum:
        """Returns the sum over documents; with several labels, a document is correct if all of them are."""
        logits, targets = self.logits(batch), batch.targets
        if targets.ndim == 1:
            loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
            return LossSum(loss, (logits.argmax(-1) == targets).sum())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")
        return LossSum(loss.mean(-1).sum(), ((logits > 0) == targets.bool()).all(-1).sum())

    def outputs(self, batch: TaskBatch) -> list[np.ndarray]:
        """Returns the probability of each label for each document; they add up to 1 where it has a single label."""
        logits = self.logits(batch)
        is_multilabel = self.model.config.problem_type == MULTI_LABEL
        return list((logits.sigmoid() if is_multilabel else logits.softmax(-1)).cpu().numpy())

    def logits(self, batch: TaskBatch) -> Float[Tensor, "documents labels"]:
        """Returns the logits of each document, in fp32."""
        if isinstance(self.model, ChunkClassifier):
            return self.model(self.vectors(batch), batch.owners)
        with self.autocast(batch.input_ids):
            if self.model.config.model_type in LEARNED_FAMILIES:
                return head_logits(self.model, self.vectors(batch)).float()
            return self.model(input_ids=batch.input_ids, attention_mask=self.attention_mask(batch)).logits.float()

    def vectors(self, batch: TaskBatch) -> Float[Tensor, "inputs width"]:
        """Returns the last hidden state of each input's first token, in fp32."""
        if not self.is_frozen:
            return self._encoded(batch)
        with torch.inference_mode(mode=False), torch.no_grad():  # training cannot use tensors of inference mode
            if self.cached is None:
                return self._encoded(batch)
            return torch.cat([self._cached_vectors(document, self.cached) for document in documents_of(batch)])

    def _cached_vectors(self, document: TaskBatch, cached: dict[str, Tensor]) -> Float[Tensor, "inputs width"]:
        key = sha256(document.input_ids.cpu().numpy().tobytes()).hexdigest()
        if key not in cached:
            cached[key] = self._encoded(document)
        return cached[key]

    def _encoded(self, batch: TaskBatch) -> Float[Tensor, "inputs width"]:
        with self.autocast(batch.input_ids):
            return self.hidden_states(batch).flatten(0, 1).index_select(0, input_starts(batch)).float()


def head_logits(model: PreTrainedModel, vectors: Float[Tensor, "documents width"]) -> Float[Tensor, "documents labels"]:
    """Returns what the classification head of a model with a learned position table makes of first tokens."""
    head, family = cast(Any, model), cast(LearnedFamily, model.config.model_type)
    match family:
        case "roberta" | "xlm-roberta" | "camembert" | "electra":
            return head.classifier(vectors.unsqueeze(1))
        case "bert":
            return head.classifier(head.dropout(head.bert.pooler(vectors.unsqueeze(1))))
        case "albert":
            return head.classifier(head.dropout(head.albert.pooler_activation(head.albert.pooler(vectors))))
        case "distilbert":
            return head.classifier(head.dropout(nn.functional.relu(head.pre_classifier(vectors))))
        case _:
            assert_never(family)
