"""An arm's model on the documents of a task: what it reads of them, and what it predicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, TokenClassificationPipeline

from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.models import FirstTokens, load_arm_model
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.reading import (
    Example,
    classification_examples,
    collate,
    labelling_examples,
    set_reading,
    windows_overlap,
)
from longmlm.downstream.scores import Output
from longmlm.errors import ModelError
from longmlm.model.architecture import position_offset, set_dropout
from longmlm.model.loading import LoadedModel
from longmlm.model.mlm import attend_in_fp32, checkpoint_activations
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.pretrain import ComputePrecision

NO_LIMIT = 10**9  # tokenizers without a limit report a larger one


@dataclass(slots=True)
class ArmModel:
    """An arm's model on the documents of a corpus.

    The vectors of a frozen `encoder` are computed once per document; in the model, FirstTokens stands in for it, unless
    the head reads more than first tokens.
    `known` are the documents that were read, by their numbers.
    """

    config: TrialConfig
    corpus: LabelledCorpus
    loaded: LoadedModel
    precision: ComputePrecision
    num_parameters: int
    encoder: PreTrainedModel | None = None
    known: dict[int, Example] = field(default_factory=dict)

    @classmethod
    def load(cls, config: TrialConfig, corpus: LabelledCorpus) -> "ArmModel":
        """Returns the model with a new head, on the GPU if there is one; raises ModelError for one that cannot read."""
        loaded = load_arm_model(config.arm, config.task.kind, corpus, config.seed)
        model, tokenizer = cast(Any, loaded.model), loaded.tokenizer
        if tokenizer.pad_token_id is None:
            raise ModelError(f"the tokenizer of {config.arm.model} has no padding token: set pad_token in its files")
        set_reading(tokenizer, config.arm, input_length(config, loaded))
        if config.recipe.dropout is not None:
            set_dropout(model, config.recipe.dropout)
        if config.runtime.activation_checkpointing:
            checkpoint_activations(model)
        if config.runtime.num_threads:
            torch.set_num_threads(config.runtime.num_threads)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        precision = resolved_precision(config.recipe.precision)
        if precision != "no":
            attend_in_fp32(model.base_model)
        encoder = model.base_model.requires_grad_(False).eval() if config.arm.frozen else None
        own = cls(config, corpus, loaded, precision, model.num_parameters(), encoder)
        if encoder is not None:
            setattr(model, model.base_model_prefix, FirstTokens(encoder).requires_grad_())
        return own

    def restore_encoder(self) -> None:
        """Puts a frozen encoder back into the model, without dropout: each epoch computes its states again."""
        encoder = cast(PreTrainedModel, self.encoder)
        set_dropout(encoder, 0.0)
        setattr(self.loaded.model, self.loaded.model.base_model_prefix, encoder)
        self.encoder = None
        self.known.clear()

    @property
    def num_tokens(self) -> int:
        """How many tokens an input may have, special tokens included."""
        return self.loaded.tokenizer.model_max_length

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        return cast(int, self.loaded.tokenizer.pad_token_id)

    def examples(self, numbers: Sequence[int]) -> list[Example]:
        """Returns the documents of these numbers as the arm reads them."""
        new = [number for number in numbers if number not in self.known]
        read = labelling_examples if self.config.task.kind == "labelling" else classification_examples
        for number, example in zip(new, read(self.corpus, new, self.loaded.tokenizer, self.config.arm), strict=True):
            vectors = self._vectors_of(example) if self.encoder else None
            self.known[number] = replace(example, vectors=vectors)
        return [self.known[number] for number in numbers]

    def predict(self, numbers: Sequence[int]) -> list[Output]:
        """Returns for each document the probability of each label, or the spans that the released pipeline finds."""
        self.loaded.model.eval()
        if self.config.task.kind == "labelling":
            return self._spans([self.corpus.documents[number].text for number in numbers])
        found: list[Output] = []
        size = self.config.runtime.documents_per_micro_batch
        for first in range(0, len(numbers), size):
            batch = self.batch(self.examples(numbers[first : first + size]))
            found += list(self.probabilities(batch))
        return found

    def batch(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Returns the arguments of a forward pass on examples, with their labels."""
        batch = collate(examples, self.pad)
        if self.config.arm.reads != "chunks":
            batch.pop("owners", None)
        return batch

    @torch.inference_mode()
    def probabilities(self, batch: dict[str, Tensor]) -> np.ndarray:
        """Returns the probability of each label for each document of a batch."""
        model = cast(Any, self.loaded.model)
        inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
        with self._autocast():
            logits = model(**inputs).logits.float()
        return (logits.sigmoid() if self.corpus.is_multilabel else logits.softmax(-1)).cpu().numpy()

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

    @torch.no_grad()
    def _vectors_of(self, example: Example) -> Tensor:
        """Returns the last hidden states of the first tokens of a document's inputs, in fp32 on the CPU."""
        encoder, size, states = cast(Any, self.encoder), self.config.runtime.documents_per_micro_batch, []
        for first in range(0, len(example.inputs), size):
            part = collate([replace(example, inputs=example.inputs[first : first + size])], self.pad)
            inputs = {name: part[name].to(encoder.device) for name in ("input_ids", "attention_mask")}
            with self._autocast():
                states.append(encoder(**inputs).last_hidden_state[:, 0].float().cpu())
        return torch.cat(states)

    def _autocast(self) -> torch.autocast:
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.loaded.model.device.type, half, enabled=self.precision != "no")


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
