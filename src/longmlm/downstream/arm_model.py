"""An arm's model on the documents of a task: what it reads of them, and what it predicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    TokenClassificationPipeline,
)

from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.models import ChunkClassifier, freeze_encoder
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.reading import Example, bio_labels, collate, examples_of, set_reading, windows_overlap
from longmlm.downstream.scores import Output
from longmlm.downstream.settings import Arm
from longmlm.errors import ModelError
from longmlm.model.architecture import position_offset
from longmlm.model.loading import LoadedModel, library_errors, load_encoder
from longmlm.model.mlm import attend_in_fp32, checkpoint_activations
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.pretrain import ComputePrecision

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification")  # transformers' names
NO_LIMIT = 10**9  # tokenizers without a limit report a larger one


@dataclass(slots=True)
class ArmModel:
    """An arm's model on the documents of a corpus; `known` are those that it has read, by their numbers."""

    config: TrialConfig
    corpus: LabelledCorpus
    loaded: LoadedModel
    precision: ComputePrecision
    known: dict[int, Example] = field(default_factory=dict)

    @classmethod
    def load(cls, config: TrialConfig, corpus: LabelledCorpus) -> "ArmModel":
        """Returns the model with a new head, on the GPU if there is one; raises ModelError for one that cannot read."""
        loaded = load_arm_model(config.arm, corpus, config.seed)
        model, tokenizer = cast(Any, loaded.model), loaded.tokenizer
        if tokenizer.pad_token_id is None:
            raise ModelError(f"the tokenizer of {config.arm.model} has no padding token: set pad_token in its files")
        set_reading(tokenizer, config.arm, input_length(config, loaded))
        if config.runtime.activation_checkpointing:
            checkpoint_activations(model)
        if config.runtime.num_threads:
            torch.set_num_threads(config.runtime.num_threads)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        precision = resolved_precision(config.recipe.precision)
        if precision != "no":
            attend_in_fp32(model.base_model)
        own = cls(config, corpus, loaded, precision)
        if config.arm.frozen:
            longest = corpus.longest(range(len(corpus.documents)))
            with library_errors(f"{config.arm.model} cannot be frozen"):
                freeze_encoder(model, own.inputs(own.batch(own.examples([longest]))))
        return own

    @property
    def num_tokens(self) -> int:
        """How many tokens an input may have, special tokens included."""
        return self.loaded.tokenizer.model_max_length

    def examples(self, numbers: Sequence[int]) -> list[Example]:
        """Returns the documents of these numbers as the arm reads them."""
        new = [number for number in numbers if number not in self.known]
        read = examples_of(self.corpus, new, self.loaded.tokenizer, self.config.arm)
        self.known |= zip(new, read, strict=True)
        return [self.known[number] for number in numbers]

    def predict(self, numbers: Sequence[int]) -> list[Output]:
        """Returns for each document the probability of each label, or the spans that the released pipeline finds."""
        self.loaded.model.eval()
        if self.corpus.target == "spans":
            return self._spans([self.corpus.documents[number].text for number in numbers])
        found: list[Output] = []
        size = self.config.runtime.documents_per_micro_batch
        for first in range(0, len(numbers), size):
            found += list(self._probabilities(self.batch(self.examples(numbers[first : first + size]))))
        return found

    def batch(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Returns the arguments of a forward pass on examples, with their labels."""
        batch = collate(examples, cast(int, self.loaded.tokenizer.pad_token_id))
        if self.config.arm.reads != "chunks":
            batch.pop("owners", None)
        return batch

    def inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns a batch without its labels, on the device of the model."""
        return {name: value.to(self.loaded.model.device) for name, value in batch.items() if name != "labels"}

    @torch.inference_mode()
    def _probabilities(self, batch: dict[str, Tensor]) -> np.ndarray:
        """Returns the probability of each label for each document of a batch."""
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        with torch.autocast(self.loaded.model.device.type, half, enabled=self.precision != "no"):
            logits = cast(Any, self.loaded.model)(**self.inputs(batch)).logits.float()
        return (logits.sigmoid() if self.corpus.target == "labels" else logits.softmax(-1)).cpu().numpy()

    def _spans(self, texts: Sequence[str]) -> list[Output]:
        options = {"stride": windows_overlap(self.num_tokens)} if self.config.arm.reads == "chunks" else {}
        find = cast(Any, TokenClassificationPipeline)(
            model=self.loaded.model,
            tokenizer=self.loaded.tokenizer,
            device=self.loaded.model.device,
            aggregation_strategy="simple",
            **options,
        )
        return [tuple(_span_in(text, entity) for entity in find(text)) for text in texts]


def load_arm_model(arm: Arm, corpus: LabelledCorpus, seed: int) -> LoadedModel:
    """Returns the arm's model with a new head, initialised with `seed`; raises ModelError as load_encoder does."""
    is_labelling = corpus.target == "spans"
    names = bio_labels(corpus.labels) if is_labelling else corpus.labels
    values: dict[str, object] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    load = partial(load_encoder, str(arm.model), revision=arm.revision, head_seed=seed)
    auto_class: Any = AutoModelForTokenClassification if is_labelling else AutoModelForSequenceClassification
    if not is_labelling:
        values["problem_type"] = (
            "multi_label_classification" if corpus.target == "labels" else "single_label_classification"
        )
    if is_labelling or arm.reads != "chunks":
        return load(auto_class, config_values=values)
    loaded = load(AutoModel)
    torch.manual_seed(seed)
    return replace(loaded, model=ChunkClassifier.around(loaded.model, chunk_pooling=arm.pooling, **values))


def input_length(config: TrialConfig, loaded: LoadedModel) -> int:
    """Returns how many tokens an input of the arm may have, special tokens included.

    Raises ModelError if the model reads fewer, or does not say how many it reads.
    """
    encoder, arm = cast(PreTrainedModel, loaded.model.base_model), config.arm
    positions = getattr(encoder.config, "max_position_embeddings", None)
    limits = [positions - position_offset(encoder)] if positions else []
    if loaded.tokenizer.model_max_length < NO_LIMIT:
        limits.append(loaded.tokenizer.model_max_length)
    if arm.length is None and not limits:
        raise ModelError(f"{arm.model} does not say how many tokens it reads: set arms.{config.arm_name}.length")
    is_absolute = getattr(encoder.config, "position_biased_input", True)  # DeBERTa's are relative
    if arm.length is not None and positions and is_absolute and arm.length > limits[0]:
        raise ModelError(
            f"{arm.model} reads {limits[0]} tokens, but arms.{config.arm_name}.length is {arm.length}: lower it, or "
            "extend the model first"
        )
    return arm.length or min(limits)


def _span_in(text: str, entity: dict[str, Any]) -> LabelledSpan:
    """Returns what the pipeline found, without the white space with which a byte-level token may begin."""
    start, end = entity["start"], entity["end"]
    return LabelledSpan(end - len(text[start:end].lstrip()), end, entity["entity_group"])
