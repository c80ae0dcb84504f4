"""The objectives: loss and accuracy at the selected positions, and of the pairs, of a padded or packed batch."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, Target
from longmlm.model.architecture import NUM_GLOBAL, layers_of, parts_of
from longmlm.model.families import RELEASED_FAMILIES
from longmlm.model.packed_attention import ATTENTION_NAME, PackedRows, attention_name, by_row
from longmlm.model.window_attention import window_of
from longmlm.settings.pretrain import ComputePrecision

MAX_LOGITS = 2**26  # computed at a time, 256 MiB in fp32; the backward pass holds three times as much


class LossSum(NamedTuple):
    """Summed loss in nats, and the number of correct predictions, over the targets of a batch."""

    loss_sum: Float[Tensor, ""]
    num_correct: Int[Tensor, ""]


class MlmOutput(NamedTuple):
    """Cross-entropy in nats, and whether the likeliest token or label is correct, of each selected position or pair."""

    losses: Float[Tensor, " selected"]
    is_correct: Bool[Tensor, " selected"]

    def sums(self) -> LossSum:
        """Returns the sums over the batch."""
        return LossSum(self.losses.sum(), self.is_correct.sum())


class MlmObjective(nn.Module):
    """A masked language model whose head runs at the selected positions only. Parameters stay fp32 in any precision.

    The head computes at most MAX_LOGITS logits at a time: with 50,265 tokens in the vocabulary, those of 1,335
    positions. If a batch has more, it computes them again in the backward pass. Without `has_full_parameters`, it
    computes all logits at once, because every rank has to call the head equally often. `isolates_documents` says that
    it is given batches in which documents are isolated.
    """

    def __init__(
        self, model: PreTrainedModel, precision: ComputePrecision = "no", isolates_documents: bool = False
    ) -> None:
        super().__init__()
        self.isolates_documents = isolates_documents
        self.model, self.parts, self.has_full_parameters = model, parts_of(model), True
        self.precision: ComputePrecision = precision
        if precision != "no":
            attend_in_fp32(self.encoder)

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        """Returns the sums over the batch; those over its pairs too, if it is a batch of pairs.

        The pair head is called even if no row of the batch is a pair: every rank needs its gradients.
        """
        if batch.pair_starts is None or batch.pair_labels is None:
            return {"mlm": self.predict(batch).sums()}
        hidden, first = self._states_at(batch, batch.selected, batch.pair_starts)
        tokens, pairs = self._predict_tokens(hidden, batch.labels), self._predict_pairs(first, batch.pair_labels)
        return {"mlm": tokens.sums(), "pair": pairs.sums()}

    def predict(self, batch: MlmBatch) -> MlmOutput:
        """Returns loss and correctness at each selected position, in the batch's order."""
        [hidden] = self._states_at(batch, batch.selected)
        return self._predict_tokens(hidden, batch.labels)

    def predict_pairs(self, batch: MlmBatch) -> MlmOutput:
        """Returns loss and correctness of each pair, in the batch's order."""
        assert batch.pair_starts is not None
        assert batch.pair_labels is not None
        [first] = self._states_at(batch, batch.pair_starts)
        return self._predict_pairs(first, batch.pair_labels)

    def _predict_pairs(self, first: Float[Tensor, "pairs width"], labels: Int[Tensor, " pairs"]) -> MlmOutput:
        with self.autocast(first):
            logits = self.parts.pair_logits(first).float()
        return _output(logits, labels)

    def _predict_tokens(self, hidden: Float[Tensor, "selected width"], labels: Int[Tensor, " selected"]) -> MlmOutput:
        size = max_positions_at_a_time(self.model.config.vocab_size)
        if len(hidden) <= size or not self.has_full_parameters:
            return self._predict(hidden, labels)
        predict = self._predict
        if torch.is_grad_enabled():
            predict = partial(checkpoint, predict, use_reentrant=False, preserve_rng_state=False)
        parts = [predict(*part) for part in zip(hidden.split(size), labels.split(size), strict=True)]
        return MlmOutput(*map(torch.cat, zip(*parts, strict=True)))

    def _predict(self, hidden: Float[Tensor, "selected width"], labels: Int[Tensor, " selected"]) -> MlmOutput:
        return _output(self._logits(hidden), labels)

    def logits(self, batch: MlmBatch) -> Float[Tensor, "selected vocabulary"]:
        """Returns the fp32 logits at the selected positions, computed under autocast unless the precision is no."""
        [hidden] = self._states_at(batch, batch.selected)
        return self._logits(hidden)

    def _logits(self, hidden: Float[Tensor, "selected width"]) -> Float[Tensor, "selected vocabulary"]:
        with self.autocast(hidden):
            return self.parts.head(hidden).float()

    def _states_at(self, batch: MlmBatch, *indices: Int[Tensor, " _"]) -> list[Float[Tensor, "_ width"]]:
        """Returns the last hidden states at indices into the flattened batch."""
        with self.autocast(batch.input_ids):
            hidden = self.hidden_states(batch).flatten(0, 1)
            return [hidden.index_select(0, one) for one in indices]

    @property
    def encoder(self) -> PreTrainedModel:
        """The model without its head."""
        return cast(PreTrainedModel, self.model.base_model)

    @property
    def reads_packed_batches(self) -> bool:
        """Whether the model can read packed batches; otherwise, it reads padded ones."""
        window = window_of(self.encoder)
        takes_no_mask = window is not None or self.encoder.config.model_type in RELEASED_FAMILIES
        has_full_layers = window is not None and window.num_layers is not None  # which a mask makes slower
        packs = attention_name(self.encoder) == ATTENTION_NAME or has_full_layers
        return packs or (self.isolates_documents and takes_no_mask)

    def autocast(self, like: Tensor) -> torch.autocast:
        """Returns the context that computes in the objective's precision on the device of `like`."""
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(like.device.type, half, enabled=self.precision != "no")

    def hidden_states(self, batch: MlmBatch) -> Float[Tensor, "rows length width"]:
        """Returns the last hidden states."""
        kind = self.encoder.config.model_type if batch.isolated_lengths else ""
        if kind in RELEASED_FAMILIES:
            return self._states_by_document(batch)
        if kind.startswith("deberta"):  # its layers take a mask of tokens by tokens, but its embeddings do not
            encoder = cast(Any, self.encoder)
            return encoder.encoder(encoder.embeddings(batch.input_ids), is_same_document(batch)).last_hidden_state
        return self.encoder(**self.encoder_inputs(batch)).last_hidden_state

    def encoder_inputs(self, batch: MlmBatch) -> dict[str, Any]:
        """Returns the arguments that the encoder gets."""
        more = self._packing(batch) if batch.row_lengths else self._global_tokens(batch.input_ids)
        if batch.token_type_ids is not None:
            more["token_type_ids"] = batch.token_type_ids
        return {"input_ids": batch.input_ids, "attention_mask": self.attention_mask(batch), **more}

    def _states_by_document(self, batch: MlmBatch) -> Float[Tensor, "1 tokens width"]:
        """Returns the last hidden states of a released Longformer: each document of a packed batch is a row to it."""

        def encode(input_ids: Tensor, position_ids: Tensor, is_token: Tensor) -> Tensor:
            more = self._global_tokens(input_ids) | {"attention_mask": is_token.long(), "position_ids": position_ids}
            return self.encoder(input_ids=input_ids, **more).last_hidden_state

        states = batch.input_ids[0], self._packing(batch)["position_ids"][0]
        return by_row(batch.isolated_lengths, states, encode).unsqueeze(0)

    def attention_mask(self, batch: MlmBatch) -> Any:
        """Returns the mask that the encoder gets."""
        if batch.isolated_lengths and not batch.row_lengths:
            return isolation_mask(self.encoder, batch)
        return None if batch.attention_mask is None else batch.attention_mask.long()  # DeBERTa subtracts it from 1

    def _packing(self, batch: MlmBatch) -> dict[str, Any]:
        """Returns the arguments that keep the rows of a packed batch, or its isolated documents, separate."""
        device, num_tokens = batch.input_ids.device, batch.input_ids.numel()
        lengths = torch.tensor(batch.row_lengths).to(device, non_blocking=True)
        ends = lengths.cumsum(0)
        begins = torch.repeat_interleave(ends - lengths, lengths, output_size=num_tokens)
        positions = torch.arange(num_tokens, device=device) - begins + self.parts.position_offset
        if batch.isolated_lengths:
            ends = torch.tensor(batch.isolated_lengths).cumsum(0).to(device, non_blocking=True)
        packed_rows = PackedRows(batch.isolated_lengths or batch.row_lengths, nn.functional.pad(ends, (1, 0)))
        arguments = {"position_ids": positions.unsqueeze(0), "packed_rows": packed_rows}
        if hasattr(self.encoder.embeddings, "token_type_embeddings"):
            arguments["token_type_ids"] = torch.zeros_like(batch.input_ids)
        return arguments

    def _global_tokens(self, input_ids: Int[Tensor, "rows length"]) -> dict[str, Any]:
        """Returns the argument that a released Longformer with global tokens needs; no argument for other models."""
        config = self.encoder.config
        if config.model_type not in RELEASED_FAMILIES or not (number := getattr(config, NUM_GLOBAL, 0)):
            return {}
        is_global = torch.zeros_like(input_ids)
        is_global[:, :number] = 1
        return {"global_attention_mask": is_global}


def _output(logits: Float[Tensor, "selected classes"], labels: Int[Tensor, " selected"]) -> MlmOutput:
    return MlmOutput(nn.functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels)


def is_same_document(batch: MlmBatch) -> Bool[Tensor, "rows 1 length length"]:
    """Returns which tokens of a padded batch may attend to each other if documents are isolated.

    For example, [CLS] a [SEP] b b [SEP] in a batch padded to 7 tokens has the isolated lengths 3 3 1. The first three
    tokens see each other, and so do the next three; padding sees itself, so that no token is without keys.
    """
    lengths = torch.tensor(batch.isolated_lengths)
    numbers = torch.repeat_interleave(lengths).view_as(batch.input_ids).to(batch.input_ids.device, non_blocking=True)
    return numbers[:, None, :, None] == numbers[:, None, None, :]


def isolation_mask(encoder: PreTrainedModel, batch: MlmBatch) -> Tensor | dict[str, Tensor]:
    """Returns the attention mask of a padded batch: the terms that eager attention adds to its scores, else a bool.

    ModernBERT gets one for its global layers and one for its local ones: in all layers, it uses a single one as it is.
    """
    masks, device = {"full_attention": is_same_document(batch)}, batch.input_ids.device
    if encoder.config.model_type == "modernbert":
        index = torch.arange(batch.input_ids.shape[1], device=device)
        is_near = (index[:, None] - index).abs() <= encoder.config.sliding_window
        masks["sliding_attention"] = masks["full_attention"] & is_near
    if attention_name(encoder) == "eager":
        is_half = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if is_half else torch.float32  # that of the scores
        lowest = torch.finfo(dtype).min
        masks = {name: mask.to(dtype).sub(1).mul(-lowest) for name, mask in masks.items()}
    return masks if len(masks) > 1 else masks["full_attention"]


def max_positions_at_a_time(vocab_size: int) -> int:
    """Returns at how many positions logits are computed at a time: MAX_LOGITS // vocab_size, and at least one."""
    return max(1, MAX_LOGITS // vocab_size)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Makes each layer keep only its input and recompute the rest in the backward pass (Chen et al. 2016)."""
    for layer in layers_of(cast(PreTrainedModel, model.base_model)):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def attend_in_fp32(encoder: PreTrainedModel) -> None:
    """Excludes DeBERTa's attention from autocast: it masks scores with the minimum of fp32, which half cannot hold."""
    layers = cast(Any, encoder).encoder.layer if encoder.config.model_type == "deberta" else ()
    for layer in layers:
        attention = layer.attention.self
        if not isinstance(attention.forward, partial):
            attention.forward = partial(_run_in_fp32, attention.forward)


def _run_in_fp32(forward: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast(hidden_states.device.type, enabled=False):
        return forward(hidden_states.float(), *args, **kwargs)
