"""ONNX files of a released model, for runtimes without torch: encoder and MLM model, each in fp32 and int8.

onnx/model.onnx is the encoder, since servers look for this name; its outputs are last_hidden_state and, where it can be
computed, sentence_embedding. The output of onnx/mlm.onnx is logits. Both have a copy in int8, such as mlm_int8.onnx.

torch's own exporter writes them; optimum-onnx 0.1, which would, requires transformers below 4.58.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longmlm.errors import ReleaseError, explained, naming
from longmlm.model.architecture import architecture_of
from longmlm.model.carried import SentenceEmbedding
from longmlm.model.loading import load_model
from longmlm.pipeline_needs import check_onnx_size
from longmlm.progress import quiet_libraries
from longmlm.release.reload import ENCODER, ENCODER_INT8, MLM, MLM_INT8

INPUTS = ("input_ids", "attention_mask")


class Logits(nn.Module):
    """The logits of a masked language model."""

    outputs = ("logits",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits of every token."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class Embeddings(nn.Module):
    """An encoder's token vectors and, unless `embedding` is None, one vector for the whole text."""

    def __init__(self, encoder: nn.Module, embedding: SentenceEmbedding | None) -> None:
        super().__init__()
        self.encoder, self.embedding = encoder, embedding
        self.outputs = ("last_hidden_state", "sentence_embedding") if embedding else ("last_hidden_state",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Returns one tensor per output."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.embedding is None:
            return (hidden,)
        is_token = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = hidden[:, 0]
        if self.embedding.pooling == "mean":
            pooled = (hidden * is_token).sum(1) / is_token.sum(1).clamp(min=1e-9)
        return (hidden, nn.functional.normalize(pooled) if self.embedding.is_normalized else pooled)


def write_graphs(folder: Path) -> list[str]:
    """Writes the ONNX files of the stock model in the folder, whatever the type of its stored weights; returns notes.

    The inputs are INPUTS, int64 of shape (batch, length); the outputs are logits, (batch, length, vocabulary),
    last_hidden_state, (batch, length, width), and sentence_embedding, (batch, width). Files contain no paths of this
    machine. Raises ReleaseError for a model that is too large for one file, or cannot be traced.
    """
    loaded = load_model(str(folder))
    check_onnx_size(sum(parameter.nbytes for parameter in loaded.model.parameters()))
    parts, embedding = architecture_of(loaded.model.eval()), loaded.carried.embedding
    (folder / ENCODER).parent.mkdir()
    _write(Embeddings(parts.encoder, embedding), parts.num_positions, folder / ENCODER, folder / ENCODER_INT8)
    _write(Logits(loaded.model), parts.num_positions, folder / MLM, folder / MLM_INT8)
    modules = " and ".join(loaded.carried.modules)
    return [] if embedding else [f"{ENCODER} has no sentence_embedding: {modules} cannot be exported"]


def _write(model: Logits | Embeddings, num_positions: int, path: Path, int8_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    try:
        with warnings.catch_warnings(action="ignore"), quiet_libraries(), naming(path):
            _program(model, num_positions).save(path, external_data=False)
            quantize_dynamic(str(path), str(int8_path), weight_type=QuantType.QUInt8, per_channel=True)
    except Exception as error:  # the exporter raises types of its own
        reason = explained(error) or str(error).strip().splitlines()[0]
        raise ReleaseError(f"{path.name} cannot be written for this model: {reason}") from error


def _program(model: Logits | Embeddings, num_positions: int) -> Any:  # an ONNXProgram, which torch does not export
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=num_positions)}
    example = tuple(torch.ones(2, 4, dtype=torch.long) for _ in INPUTS)  # one tensor twice would be one input
    program = torch.onnx.export(
        model,
        example,
        dynamo=True,
        input_names=INPUTS,
        output_names=model.outputs,
        dynamic_shapes=(dimensions, dimensions),
        verbose=False,
    )
    assert program
    ClearMetadataAndDocStringPass()(program.model)  # it includes stack traces with the paths of this machine
    return program
