"""ONNX export of a released model: model.onnx, for runtimes without torch."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.errors import ReleaseError
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import load_model

GRAPH = "model.onnx"
INPUTS = ("input_ids", "attention_mask")
EXTRA = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")
MAX_BYTES = 2**31 - 2**25  # of weights: Protocol Buffers files are limited to 2 GiB, and the graph takes a few MB


class _Logits(nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def check_onnx_installed() -> None:
    """Raises ReleaseError unless the packages that write and run ONNX are installed."""
    if missing := [name for name in EXTRA if not find_spec(name)]:
        raise ReleaseError(
            f"recipe.onnx = true needs {missing[0]}, which is not installed: pip install 'longmlm[onnx]'"
        )


def write_graph(folder: Path) -> None:
    """Writes model.onnx for the stock model in the folder, in fp32 whatever the type of its stored weights.

    The inputs are INPUTS, int64 of shape (batch, length); the output is logits, (batch, length, vocabulary). The file
    contains no paths of this machine. Raises ReleaseError for a model that is too large for one file, or cannot be
    traced.
    """
    model = load_model(str(folder)).model.eval()
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    if num_bytes > MAX_BYTES:
        raise ReleaseError(
            f"{GRAPH} would have {num_bytes / 1e9:.1f} GB, and its format is limited to 2 GB: set recipe.onnx = false"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            _program(model).save(folder / GRAPH, external_data=False)
    except Exception as error:  # the exporter raises types of its own
        raise ReleaseError(f"{GRAPH} cannot be written for this model: {str(error).strip().splitlines()[0]}") from error


def _program(model: PreTrainedModel) -> Any:  # an ONNXProgram, which torch does not export
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports its progress as warnings
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=architecture_of(model).num_positions)}
    example = tuple(
        torch.ones(2, 4, dtype=torch.long) for _ in INPUTS
    )  # the same tensor twice would be traced as one input
    program = torch.onnx.export(
        _Logits(model),
        example,
        dynamo=True,
        input_names=INPUTS,
        output_names=("logits",),
        dynamic_shapes=(dimensions, dimensions),
        verbose=False,
    )
    assert program
    ClearMetadataAndDocStringPass()(program.model)  # it includes stack traces with the paths of this machine
    return program
