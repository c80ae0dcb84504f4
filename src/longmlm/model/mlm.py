"""The masked-language-modelling objective: loss and accuracy at the selected positions of a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch
from longmlm.model.architecture import architecture_of
from longmlm.model.packed_attention import PackedRows, is_packed
from longmlm.settings.pretrain import ComputePrecision

MAX_LOGITS = 2**26  # computed at a time, 256 MiB in fp32; the backward pass holds three times as much


class LossSum(NamedTuple):
    """Summed cross-entropy in nats, and the number of correct predictions, over the selected positions of a batch."""

    loss_sum: Float[Tensor, ""]
    num_correct: Int[Tensor, ""]


class MlmOutput(NamedTuple):
    """Cross-entropy in nats, and whether the likeliest token is correct, at each selected position."""

    losses: Float[Tensor, " selected"]
    is_correct: Bool[Tensor, " selected"]


class MlmObjective(nn.Module):
    """A masked language model whose head runs at the selected positions only; parameters stay fp32 in any precision.

    The head computes at most MAX_LOGITS logits at a time: with 50,265 tokens in the vocabulary, those of 1,335
    positions. If a batch has more, it computes them again in the backward pass. In ZeRO stage 3 it runs once: every
    rank has to call it the same number of times, because each call gathers its parameters.
    """

    def __init__(self, model: PreTrainedModel, precision: ComputePrecision = "no") -> None:
        super().__init__()
        self.model = model
        self.precision: ComputePrecision = precision
        self.parts = architecture_of(model)
        if precision != "no" and model.config.model_type == "deberta":
            _attend_in_fp32(self.parts.layers)

    @property
    def is_packed(self) -> bool:
        """Whether the model can read packed batches; it can always read padded ones."""
        return is_packed(self.model)

    def forward(self, batch: MlmBatch) -> LossSum:
        """Returns the sums over the batch, which a training step adds up over its micro-batches."""
        output = self.predict(batch)
        return LossSum(output.losses.sum(), output.is_correct.sum())

    def predict(self, batch: MlmBatch) -> MlmOutput:
        """Returns loss and correctness at each selected position, in the batch's order."""
        hidden, size = self.selected_states(batch), max(1, MAX_LOGITS // self.model.config.vocab_size)
        if len(hidden) <= size or is_partitioned(self.parts.decoder_weight):
            return self._predict(hidden, batch.labels)
        predict = self._predict
        if torch.is_grad_enabled():
            predict = partial(checkpoint, predict, use_reentrant=False, preserve_rng_state=False)
        parts = [predict(*part) for part in zip(hidden.split(size), batch.labels.split(size), strict=True)]
        return MlmOutput(*map(torch.cat, zip(*parts, strict=True)))

    def _predict(self, hidden: Float[Tensor, "selected width"], labels: Int[Tensor, " selected"]) -> MlmOutput:
        logits = self._logits(hidden)
        return MlmOutput(nn.functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels)

    def logits(self, batch: MlmBatch) -> Float[Tensor, "selected vocabulary"]:
        """Returns the fp32 logits at the selected positions, computed under autocast unless the precision is no."""
        return self._logits(self.selected_states(batch))

    def _logits(self, hidden: Float[Tensor, "selected width"]) -> Float[Tensor, "selected vocabulary"]:
        with self._autocast(hidden):
            return self.parts.head(hidden).float()

    def selected_states(self, batch: MlmBatch) -> Float[Tensor, "selected width"]:
        """Returns the last hidden states at the selected positions."""
        with self._autocast(batch.input_ids):
            return self.hidden_states(batch).flatten(0, 1).index_select(0, batch.selected)

    def _autocast(self, like: Tensor) -> torch.autocast:
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(like.device.type, half, enabled=self.precision != "no")

    def hidden_states(self, batch: MlmBatch) -> Float[Tensor, "rows length width"]:
        """Returns the last hidden states."""
        packing = self._packing(batch) if batch.row_lengths else {}
        mask = self.attention_mask(batch)
        return self.parts.encoder(input_ids=batch.input_ids, attention_mask=mask, **packing).last_hidden_state

    def _packing(self, batch: MlmBatch) -> dict[str, Any]:
        """Returns the arguments that keep the rows of a packed batch separate."""
        device, num_tokens = batch.input_ids.device, batch.input_ids.numel()
        lengths = torch.tensor(batch.row_lengths).to(device, non_blocking=True)
        ends = lengths.cumsum(0)
        begins = torch.repeat_interleave(ends - lengths, lengths, output_size=num_tokens)
        positions = torch.arange(num_tokens, device=device) - begins + self.parts.position_offset
        packed_rows = PackedRows(batch.row_lengths, nn.functional.pad(ends, (1, 0)))
        arguments = {"position_ids": positions.unsqueeze(0), "packed_rows": packed_rows}
        if hasattr(self.parts.encoder.embeddings, "token_type_embeddings"):
            arguments["token_type_ids"] = torch.zeros_like(batch.input_ids)
        return arguments

    def attention_mask(self, batch: MlmBatch) -> Tensor | None:
        """Returns the mask that the encoder gets."""
        return None if batch.attention_mask is None else batch.attention_mask.long()  # DeBERTa subtracts it from 1


def is_partitioned(parameter: nn.Parameter) -> bool:
    """Returns whether the parameter itself is partitioned over the ranks, as in ZeRO stage 3."""
    return hasattr(parameter, "ds_id")


def _attend_in_fp32(layers: nn.ModuleList) -> None:
    """Excludes DeBERTa's attention from autocast: it masks scores with the minimum of fp32, which half cannot hold."""
    for layer in layers:
        attention = cast(Any, layer).attention.self
        attention.forward = partial(_run_in_fp32, attention.forward)


def _run_in_fp32(forward: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast(hidden_states.device.type, enabled=False):
        return forward(hidden_states.float(), *args, **kwargs)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Makes each layer keep only its input and recompute the rest in the backward pass (Chen et al. 2016)."""
    for layer in architecture_of(model).layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def dropout_of(model: nn.Module) -> float:
    """Returns the highest probability of a dropout layer; 0 without dropout layers."""
    return max((module.p for module in model.modules() if isinstance(module, nn.Dropout)), default=0.0)


def set_dropout(model: nn.Module, probability: float) -> None:
    """Sets every dropout of the model, attention included, and leaves the model's config as it is."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = probability
        elif isinstance(getattr(module, "attention_dropout", None), int | float):  # ModernBERT, NomicBERT, EuroBERT
            cast(Any, module).attention_dropout = probability
            if isinstance(getattr(module, "out_drop", None), nn.Identity):  # ModernBERT's, if its config has none
                module.out_drop = nn.Dropout(probability)
