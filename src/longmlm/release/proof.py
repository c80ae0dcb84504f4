"""Proof of an export: a process without longmlm loads it and must compute the same logits."""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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

LONGEST_PROOF = 4096

LEAST_CONTENT = 4

ONNX_TOLERANCE = 1e-3  # another runtime adds up in another order


@dataclass(frozen=True, slots=True)
class Proof:
    """What the fresh process found: its logits' largest difference, and how many tokens fill-mask read.

    `onnx_difference` is that of onnxruntime, where the folder has a model.onnx.
    """

    largest_difference: float
    text_tokens: int
    answer: str
    onnx_difference: float | None


def prove(
    trained: LoadedModel, weights: WeightType, rows: Rows, folder: Path, base_positions: int | None = None
) -> Proof:
    """Loads the folder in a process without longmlm and compares logits with the trained model's.

    Inputs are held-out tokens: one, as many as the base model reads (half the positions where there is none), as many
    as there are positions (of very many, the first thousands), and a padded batch. The trained weights are rounded to
    the stored type first. The code in the folder's card is run as well. Raises ReleaseError when anything differs, is
    missing or unreadable.
    """
    model: torch.nn.Module = trained.model
    rounded = cast(PreTrainedModel, model.to(TYPES[weights]).to(torch.float32).eval())
    with tempfile.TemporaryDirectory() as scratch:
        reference, text = Path(scratch) / "reference.safetensors", Path(scratch) / "text.txt"
        save_file(_reference(rounded, rows, base_positions), reference)
        longest = min(rows.row_length, architecture_of(trained.model).num_positions)
        text.write_text(masked_text(trained.tokenizer, rows, longest), encoding="utf-8")
        command = [sys.executable, "-P", str(reload.__file__), str(folder), str(reference), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise ReleaseError(f"transformers cannot read what was exported: {said.splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    _refuse_unsound(found, architecture_of(trained.model).num_positions)
    return Proof(found["largest_difference"], found["text_tokens"], found["answer"].strip(), found["onnx_difference"])


def masked_text(tokenizer: PreTrainedTokenizerBase, rows: Rows, longest: int) -> str:
    """Returns the longest held-out row as text of at most `longest` tokens, the mask token near its end."""
    content = max((rows[row_id].input_ids for row_id in range(min(64, len(rows)))), key=len)[1:-1].tolist()[:longest]
    special, mask = set(tokenizer.all_special_ids), str(tokenizer.mask_token)
    content = [token_id for token_id in content if token_id not in special]
    while True:
        place = len(content) - max(1, len(content) // 20)
        head, tail = (str(tokenizer.decode(ids)).replace(mask, "") for ids in (content[:place], content[place + 1 :]))
        text = f"{head} {mask}{tail}"
        if len(tokenizer(text)["input_ids"]) <= longest or len(content) < LEAST_CONTENT:
            return text
        content = content[: -max(1, len(content) // 50)]


@torch.no_grad()
def _reference(model: PreTrainedModel, rows: Rows, base_positions: int | None) -> dict[str, torch.Tensor]:
    num_positions = min(architecture_of(model).num_positions, max(LONGEST_PROOF, rows.row_length))
    held_out = torch.cat([torch.from_numpy(rows[row_id].input_ids) for row_id in range(min(64, len(rows)))])
    whole = held_out.repeat(-(-num_positions // len(held_out)))[:num_positions].unsqueeze(0)
    num_base = min(base_positions or num_positions // 2, num_positions)
    padded, mask = whole.repeat(2, 1), torch.ones(2, num_positions, dtype=torch.long)
    padded[1, num_positions // 2 :], mask[1, num_positions // 2 :] = model.config.pad_token_id or 0, 0
    inputs = {
        "short": (whole[:, :1], mask[:1, :1]),
        "base": (whole[:, :num_base], mask[:1, :num_base]),
        "whole": (whole, mask[:1]),
        "padded": (padded, mask),
    }
    tensors = {}
    for name, (input_ids, attention_mask) in inputs.items():
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[attention_mask == 1]
        tensors |= {f"{name}.input_ids": input_ids, f"{name}.attention_mask": attention_mask, f"{name}.logits": logits}
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _refuse_unsound(found: dict[str, Any], num_positions: int) -> None:
    problems = [f"{key} weights {found[key][:2]}" for key in ("missing", "unexpected") if found[key]]
    if not found["largest_difference"] <= TOLERANCE:
        problems.append(f"logits differ by {found['largest_difference']:.2e}")
    if found["onnx_difference"] is not None and not found["onnx_difference"] <= ONNX_TOLERANCE:
        problems.append(f"logits of model.onnx differ by {found['onnx_difference']:.2e}")
    if not found["decoder_is_tied"]:
        problems.append("the decoder is not tied to the embeddings")
    if found["model_max_length"] != num_positions:
        problems.append(f"the tokenizer's model_max_length is {found['model_max_length']}, not {num_positions}")
    if found["knows_longmlm"]:
        problems.append("the check itself loaded longmlm")
    if problems:
        raise ReleaseError(f"the exported folder was not written: {'; '.join(problems)}")
