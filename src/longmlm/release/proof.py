"""Verification of an export: a process without longmlm loads it and must compute the trained model's logits."""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.data.rows import Rows
from longmlm.errors import ReleaseError
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import LoadedModel
from longmlm.release import reload
from longmlm.release.export import TYPES
from longmlm.settings.release import WeightType

TOLERANCE = 1e-4
ONNX_TOLERANCE = 1e-3  # a different runtime adds in a different order
MAX_TOKENS = 4096
MAX_ROWS = 64
MIN_CONTENT = 4


@dataclass(frozen=True, slots=True)
class Proof:
    """What that process reports; `answer` is what fill-mask predicts in a text of `text_tokens` tokens.

    `onnx_difference` is absent without a model.onnx; `missing` and `unexpected` are names of weights.
    """

    largest_difference: float
    onnx_difference: float | None
    missing: list[str]
    unexpected: list[str]
    decoder_is_tied: bool
    model_max_length: int
    text_tokens: int
    answer: str
    knows_longmlm: bool

    @property
    def summary(self) -> list[str]:
        """What was verified, in two or three lines."""
        lines = [f"reloaded with plain transformers: logits differ by at most {self.largest_difference:.1e}"]
        if self.onnx_difference is not None:
            lines.append(f"model.onnx with onnxruntime: logits differ by at most {self.onnx_difference:.1e}")
        return [*lines, f"fill-mask on a text of {self.text_tokens} tokens predicts {self.answer.strip()!r}"]


def prove(
    trained: LoadedModel, weights: WeightType, rows: Rows, folder: Path, base_positions: int | None = None
) -> Proof:
    """Loads the folder in a process without longmlm, and compares its logits with those of the trained model.

    Inputs are held-out tokens: one; as many as the base model reads (half the positions where there is none); as many
    as there are positions (at most a few thousand); and a padded batch. The trained weights are rounded to the stored
    type first. The code in the folder's card is run too. Raises ReleaseError when anything differs, is missing or
    cannot be read.
    """
    model: torch.nn.Module = trained.model
    num_positions = architecture_of(trained.model).num_positions
    rounded = cast(PreTrainedModel, model.to(TYPES[weights]).to(torch.float32).eval())
    with tempfile.TemporaryDirectory() as scratch:
        reference, text = Path(scratch) / "reference.safetensors", Path(scratch) / "text.txt"
        save_file(_reference(rounded, rows, base_positions), reference)
        text.write_text(masked_text(trained.tokenizer, rows, min(rows.row_length, num_positions)), encoding="utf-8")
        command = [sys.executable, "-P", str(reload.__file__), str(folder), str(reference), str(text)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = process.stderr.strip() or f"exit code {process.returncode}"
        raise ReleaseError(f"transformers cannot read the exported folder: {reason.splitlines()[-1]}")
    proof = Proof(**json.loads(process.stdout.splitlines()[-1]))
    _check(proof, num_positions, reload.is_tied(rounded))
    return proof


def masked_text(tokenizer: PreTrainedTokenizerBase, rows: Rows, longest: int) -> str:
    """Returns the longest held-out row as text of at most `longest` tokens, with the mask token near its end."""
    content = max((rows[row_id].input_ids for row_id in range(min(MAX_ROWS, len(rows)))), key=len)[1:-1].tolist()
    special, mask = set(tokenizer.all_special_ids), str(tokenizer.mask_token)
    content = [token_id for token_id in content[:longest] if token_id not in special]
    while True:
        position = len(content) - max(1, len(content) // 20)
        parts = (content[:position], content[position + 1 :])
        before, after = (str(tokenizer.decode(part)).replace(mask, "") for part in parts)
        text = f"{before} {mask}{after}"
        if len(tokenizer(text)["input_ids"]) <= longest or len(content) < MIN_CONTENT:
            return text
        content = content[: -max(1, len(content) // 50)]


@torch.no_grad()
def _reference(model: PreTrainedModel, rows: Rows, base_positions: int | None) -> dict[str, torch.Tensor]:
    num_positions = min(architecture_of(model).num_positions, max(MAX_TOKENS, rows.row_length))
    held_out = torch.cat([torch.from_numpy(rows[row_id].input_ids) for row_id in range(min(MAX_ROWS, len(rows)))])
    longest = held_out.repeat(-(-num_positions // len(held_out)))[:num_positions].unsqueeze(0)
    num_base = min(base_positions or num_positions // 2, num_positions)
    padded, mask = longest.repeat(2, 1), torch.ones(2, num_positions, dtype=torch.long)
    padded[1, num_positions // 2 :], mask[1, num_positions // 2 :] = model.config.pad_token_id or 0, 0
    inputs = {
        "short": (longest[:, :1], mask[:1, :1]),
        "base": (longest[:, :num_base], mask[:1, :num_base]),
        "whole": (longest, mask[:1]),
        "padded": (padded, mask),
    }
    tensors = {}
    for name, (input_ids, attention_mask) in inputs.items():
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[attention_mask == 1]
        tensors |= {f"{name}.input_ids": input_ids, f"{name}.attention_mask": attention_mask, f"{name}.logits": logits}
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _check(proof: Proof, num_positions: int, is_tied: bool) -> None:
    """Raises ReleaseError with everything that is wrong."""
    weights = {"missing": proof.missing, "unexpected": proof.unexpected}
    problems = [f"{name} weights {keys[:2]}" for name, keys in weights.items() if keys]
    if not proof.largest_difference <= TOLERANCE:
        problems.append(f"logits differ by {proof.largest_difference:.2e}")
    if proof.onnx_difference is not None and not proof.onnx_difference <= ONNX_TOLERANCE:
        problems.append(f"logits of model.onnx differ by {proof.onnx_difference:.2e}")
    if proof.decoder_is_tied != is_tied:
        problems.append(f"the decoder is {'not ' if is_tied else ''}tied to the embeddings")
    if proof.model_max_length != num_positions:
        problems.append(f"the tokenizer's model_max_length is {proof.model_max_length}, not {num_positions}")
    if proof.knows_longmlm:
        problems.append("the process that checks it has loaded longmlm")
    if problems:
        raise ReleaseError(f"the model was not released, since its export is not faithful: {'; '.join(problems)}")
