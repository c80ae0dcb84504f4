"""The encoder of any model on padded or packed batches."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.batches.collate import InputBatch
from longmlm.model.architecture import NUM_GLOBAL, position_offset
from longmlm.model.packed_attention import PackedRows, reads_packed_batches
from longmlm.settings.pretrain import ComputePrecision


class LossSum(NamedTuple):
    """Summed loss in nats, and the number of correct predictions, over the targets of a batch."""

    loss_sum: Float[Tensor, ""]
    num_correct: Int[Tensor, ""]


BatchT = TypeVar("BatchT", bound=InputBatch)


class EncoderObjective(nn.Module, Generic[BatchT]):
    """A model and the precision that it computes in; parameters stay fp32 in any precision."""

    def __init__(self, model: PreTrainedModel, precision: ComputePrecision = "no") -> None:
        super().__init__()
        self.model = model
        self.precision: ComputePrecision = precision
        if precision != "no" and self.encoder.config.model_type == "deberta":
            _attend_in_fp32(cast(Any, self.encoder).encoder.layer)

    @property
    def encoder(self) -> PreTrainedModel:
        """The model without its head."""
        return cast(PreTrainedModel, self.model.base_model)

    @property
    def reads_packed_batches(self) -> bool:
        """Whether the model can read packed batches; it can always read padded ones."""
        return reads_packed_batches(self.encoder)

    def autocast(self, like: Tensor) -> torch.autocast:
        """Returns the context that computes in the objective's precision on the device of `like`."""
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(like.device.type, half, enabled=self.precision != "no")

    def hidden_states(self, batch: BatchT) -> Float[Tensor, "rows length width"]:
        """Returns the last hidden states."""
        return self.encoder(**self.model_inputs(batch)).last_hidden_state

    def model_inputs(self, batch: BatchT) -> dict[str, Any]:
        """Returns the arguments of the encoder, or of a model that passes them to it."""
        more = self._packing(batch) if batch.row_lengths else self._global_tokens(batch)
        return {"input_ids": batch.input_ids, "attention_mask": self.attention_mask(batch), **more}

    def _packing(self, batch: BatchT) -> dict[str, Any]:
        """Returns the arguments that keep the rows of a packed batch separate."""
        device, num_tokens = batch.input_ids.device, batch.input_ids.numel()
        lengths = input_lengths(batch)
        ends = lengths.cumsum(0)
        begins = torch.repeat_interleave(ends - lengths, lengths, output_size=num_tokens)
        positions = torch.arange(num_tokens, device=device) - begins + position_offset(self.encoder)
        packed_rows = PackedRows(batch.row_lengths, nn.functional.pad(ends, (1, 0)))
        arguments = {"position_ids": positions.unsqueeze(0), "packed_rows": packed_rows}
        if hasattr(self.encoder.embeddings, "token_type_embeddings"):
            arguments["token_type_ids"] = torch.zeros_like(batch.input_ids)
        return arguments

    def _global_tokens(self, batch: BatchT) -> dict[str, Any]:
        """Returns the argument that a released Longformer with global tokens needs; no argument for other models."""
        config = self.encoder.config
        number = getattr(config, NUM_GLOBAL, 0) if config.model_type == "longformer" else 0
        if not number:
            return {}
        is_global = torch.zeros_like(batch.input_ids)
        is_global[:, :number] = 1
        return {"global_attention_mask": is_global}

    def attention_mask(self, batch: BatchT) -> Tensor | None:
        """Returns the mask that the encoder gets."""
        return None if batch.attention_mask is None else batch.attention_mask.long()  # DeBERTa subtracts it from 1


def input_lengths(batch: InputBatch) -> Int64[Tensor, " inputs"]:
    """Returns the number of tokens of each input, without padding."""
    device, (num_rows, length) = batch.input_ids.device, batch.input_ids.shape
    if batch.row_lengths:
        return torch.tensor(batch.row_lengths).to(device, non_blocking=True)
    return (
        torch.full((num_rows,), length, device=device) if batch.attention_mask is None else batch.attention_mask.sum(1)
    )


def _attend_in_fp32(layers: nn.ModuleList) -> None:
    """Excludes DeBERTa's attention from autocast: it masks scores with the minimum of fp32, which half cannot hold."""
    for layer in layers:
        attention = cast(Any, layer).attention.self
        attention.forward = partial(_run_in_fp32, attention.forward)


def _run_in_fp32(forward: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast(hidden_states.device.type, enabled=False):
        return forward(hidden_states.float(), *args, **kwargs)
