"""Verification of an export: a process without longmlm loads it and must compute the trained model's logits."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.batches.collate import collate
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import ReleaseError, counted, naming
from longmlm.evaluation.frozen import FrozenRows, cut
from longmlm.hubs.transfers import SECRET_VARIABLE
from longmlm.model.architecture import architecture_of
from longmlm.model.heads import pair_parameters
from longmlm.model.loading import LoadedModel
from longmlm.model.mlm import max_positions_at_a_time
from longmlm.release import reload
from longmlm.release.export import TYPES, carried_by
from longmlm.release.onnx_graph import Embeddings
from longmlm.release.reload import CARRIED, ENCODER, ENCODER_INT8, MASKED, MLM, MLM_INT8
from longmlm.reports.card_code import LoadingCode
from longmlm.settings.masking import HeldOut
from longmlm.settings.release import WeightType

TOLERANCE = 1e-4
ONNX_TOLERANCE = 1e-3  # a different runtime adds in a different order
INT8_LOSS = 0.01  # of the selected tokens
INT8_DEVIATIONS = 3.0
INT8_SIMILARITY = 0.95  # of trained models: 0.989 to 0.9997
INT8_SELECTED = 2048  # tokens that int8 is measured on, if there are as many
MAX_TOKENS = 4096
MAX_ROWS = 64
MIN_CONTENT = 4


@dataclass(frozen=True, slots=True)
class OnnxProof:
    """Largest differences between the fp32 files and PyTorch, and what int8 changes.

    Of `int8_selected` tokens, only fp32 predicts `int8_lost` correctly, and only int8 predicts `int8_gained` correctly;
    `int8_similarity` is the mean cosine similarity of token vectors.
    """

    logits_difference: float
    encoder_difference: float
    int8_selected: int
    int8_lost: int
    int8_gained: int
    int8_similarity: float

    @property
    def summary(self) -> list[str]:
        """What was verified, in two lines."""
        change = 100 * (self.int8_gained - self.int8_lost) / max(1, self.int8_selected)
        files = f"logits differ by at most {self.logits_difference:.1e}, vectors by {self.encoder_difference:.1e}"
        accuracy = f"accuracy on {counted(self.int8_selected, 'masked token')} changes by {change:+.2f} points"
        similarity = f"cosine similarity of token vectors {self.int8_similarity:.4f}"
        return [f"ONNX files with onnxruntime: {files}", f"ONNX files in int8: {accuracy}, {similarity}"]

    @property
    def problems(self) -> list[str]:
        """What differs too much. Int8 may lose 1 % of the selected tokens, plus three standard deviations of chance.

        If int8 is as good as fp32, a token that changes is lost or gained with the same probability.
        """
        differs = {MLM: self.logits_difference, ENCODER: self.encoder_difference}
        large = {name: number for name, number in differs.items() if not number <= ONNX_TOLERANCE}
        problems = [f"outputs of {name} differ by {number:.2e}" for name, number in large.items()]
        chance = INT8_DEVIATIONS * math.sqrt(self.int8_lost + self.int8_gained)
        if self.int8_lost - self.int8_gained > INT8_LOSS * self.int8_selected + chance:
            lost, gained = counted(self.int8_lost, "correct prediction"), f"gains only {self.int8_gained:,}"
            problems.append(f"{MLM_INT8} loses {lost} on {counted(self.int8_selected, 'token')} and {gained}")
        if not self.int8_similarity >= INT8_SIMILARITY:
            problems.append(f"the cosine similarity of token vectors of {ENCODER_INT8} is {self.int8_similarity:.4f}")
        return problems


@dataclass(frozen=True, slots=True)
class Proof:
    """What that process reports; `answer` is what fill-mask predicts in a text of `text_tokens` tokens.

    `missing`, `unexpected` and `not_carried` are names of weights; `onnx` is None without ONNX files.
    """

    largest_difference: float
    missing: list[str]
    unexpected: list[str]
    not_carried: list[str]
    decoder_is_tied: bool
    model_max_length: int
    truncation_side: str
    knows_longmlm: bool
    onnx: OnnxProof | None
    text_tokens: int = 0
    answer: str = ""

    @property
    def outputs(self) -> str:
        """What was compared."""
        result = f"differ by at most {self.largest_difference:.1e}" if self.largest_difference else "are identical"
        return f"outputs {result}"

    @property
    def summary(self) -> list[str]:
        """What was verified of a masked language model, in a few lines."""
        onnx = self.onnx.summary if self.onnx else []
        answer = f"fill-mask on a text of {counted(self.text_tokens, 'token')} predicts {self.answer.strip()!r}"
        return [f"reloaded with plain transformers: {self.outputs}", *onnx, answer]

    def check(self, model: PreTrainedModel, num_tokens: int, truncation_side: str) -> None:
        """Raises ReleaseError with everything that is wrong in an export of this model."""
        lists = {"missing": self.missing, "unexpected": self.unexpected, "altered": self.not_carried}
        problems = [f"{kind} weights {names[:2]}" for kind, names in lists.items() if names]
        if not self.largest_difference <= TOLERANCE:
            problems.append(f"outputs differ by {self.largest_difference:.2e}")
        problems += self.onnx.problems if self.onnx else []
        if self.decoder_is_tied != reload.is_tied(model):
            problems.append(f"the decoder is {'not ' if reload.is_tied(model) else ''}tied to the embeddings")
        if self.model_max_length != num_tokens:
            problems.append(f"the tokenizer's model_max_length is {self.model_max_length}, not {num_tokens}")
        if self.truncation_side != truncation_side:
            problems.append(f"texts are truncated on the {self.truncation_side}, not on the {truncation_side}")
        if self.knows_longmlm:
            problems.append("longmlm was imported in the process that reloaded the export")
        if problems:
            raise ReleaseError(f"the model was not released, since its export is not faithful: {'; '.join(problems)}")


def prove(
    trained: LoadedModel,
    weights: WeightType,
    rows: Rows,
    folder: Path,
    base_positions: int | None = None,
    codes: Sequence[LoadingCode] = (),
) -> Proof:
    """Loads the folder in a process without longmlm, and compares its outputs with those of the trained model.

    Inputs are held-out tokens: one; as many as the base model reads (half the positions where there is none); as many
    as there are positions (at most a few thousand); and a padded batch. If an input has more than MAX_LOGITS logits,
    those of tokens spread over it are compared, and the last hidden states of all; a short padded batch is then added,
    which goes through an unaltered forward pass. The trained weights are rounded to the stored type first. The `codes`
    that the card shows are run too. Raises ReleaseError when anything differs, is missing or cannot be read.
    """
    num_positions = architecture_of(trained.model).num_positions
    stored = rounded(trained, weights)
    content = _reference(stored, rows, base_positions)
    if (folder / MLM).is_file():
        content |= _onnx_reference(stored, content, trained, rows)
    kept = {name: value.detach().to(TYPES[weights]) for name, value in pair_parameters(stored).items()}
    kept |= carried_by(trained, weights).weights  # what the model of this proof, a masked language model, does not use
    content |= {f"{CARRIED}{name}": value for name, value in kept.items()}
    text = masked_text(trained.tokenizer, rows, min(rows.row_length, num_positions))
    proof = reload_in_process(folder, content, codes, text=text)
    proof.check(stored, num_positions, trained.tokenizer.truncation_side)
    return proof


def rounded(trained: LoadedModel, weights: WeightType) -> PreTrainedModel:
    """Rounds the model's weights to the stored type and returns the same model, in fp32 and evaluation mode."""
    model: torch.nn.Module = trained.model
    return cast(PreTrainedModel, model.to(TYPES[weights]).to(torch.float32).eval())


def reload_in_process(
    folder: Path,
    content: Mapping[str, torch.Tensor],
    codes: Sequence[LoadingCode],
    auto_class: str = "AutoModelForMaskedLM",
    text: str = "",
) -> Proof:
    """Returns what the script reload.py reports about a folder, in a process without longmlm and without secrets.

    Code that needs sentence-transformers is run only if that is installed. Raises ReleaseError if the script fails.
    """
    has_sentences = find_spec("sentence_transformers") is not None
    runnable = [code.runnable for code in codes if has_sentences or code.template != "load_sentences.md"]
    environment = {name: value for name, value in os.environ.items() if not SECRET_VARIABLE.search(name)}
    with tempfile.TemporaryDirectory() as scratch:
        tensors, text_file = Path(scratch) / "reference.safetensors", Path(scratch) / "text.txt"
        with naming(tensors):
            save_file({name: tensor.contiguous().clone() for name, tensor in content.items()}, tensors)
            text_file.write_text(text, encoding="utf-8")
        arguments = [str(folder), str(tensors), auto_class, str(text_file), json.dumps(runnable)]
        command = [sys.executable, "-P", str(reload.__file__), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        reason = process.stderr.strip() or f"exit code {process.returncode}"
        raise ReleaseError(f"transformers cannot read the exported folder: {reason.splitlines()[-1]}")
    report = json.loads(process.stdout.splitlines()[-1])
    onnx = report.pop("onnx")
    return Proof(**report, onnx=onnx and OnnxProof(**onnx))


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
        if len(tokenizer(text, verbose=False)["input_ids"]) <= longest or len(content) < MIN_CONTENT:
            return text
        content = content[: -max(1, len(content) // 50)]


def _reference(model: PreTrainedModel, rows: Rows, base_positions: int | None) -> dict[str, torch.Tensor]:
    num_positions = min(architecture_of(model).num_positions, max(MAX_TOKENS, rows.row_length))
    held_out = torch.cat([torch.from_numpy(rows[row_id].input_ids) for row_id in range(min(MAX_ROWS, len(rows)))])
    longest = held_out.repeat(-(-num_positions // len(held_out)))[:num_positions].unsqueeze(0)
    num_base = min(base_positions or num_positions // 2, num_positions)
    pad, num_at_a_time = model.config.pad_token_id or 0, max_positions_at_a_time(model.config.vocab_size)
    lengths = {"short": 1, "base": num_base, "whole": num_positions}
    inputs = {name: (longest[:, :length], torch.ones_like(longest[:, :length])) for name, length in lengths.items()}
    inputs["padded"] = padded(longest, pad)
    if 2 * num_positions > num_at_a_time > 1:
        inputs["short_padded"] = padded(longest[:, : num_at_a_time // 2], pad)
    return reference(model, inputs, num_at_a_time)


@torch.no_grad()
def reference(
    model: PreTrainedModel, inputs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], num_at_a_time: int | None = None
) -> dict[str, torch.Tensor]:
    """Returns ids, attention masks and the logits of their tokens, by name.

    For an input with more than `num_at_a_time` tokens, all hidden states are computed, but only some logits.
    """
    tensors = {}
    for name, (input_ids, attention_mask) in inputs.items():
        tensors |= {f"{name}.input_ids": input_ids, f"{name}.attention_mask": attention_mask}
        tokens = None
        if num_at_a_time and input_ids.numel() > num_at_a_time:
            num_tokens = int(attention_mask.sum())
            tokens = torch.linspace(0, num_tokens - 1, min(num_tokens, num_at_a_time)).long()
            hidden = architecture_of(model).encoder(input_ids=input_ids, attention_mask=attention_mask)
            tensors |= {f"{name}.{reload.TOKENS}": tokens}
            tensors[f"{name}.last_hidden_state"] = reload.unpadded(hidden[0], attention_mask)
        tensors[f"{name}.logits"] = reload.logits_of(model, input_ids, attention_mask, tokens)
    return tensors


def padded(row: torch.Tensor, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask of a batch of two rows: the whole row, and its first half with padding."""
    half = row.shape[1] // 2
    input_ids, attention_mask = row.repeat(2, 1), torch.ones(2, row.shape[1], dtype=torch.long)
    input_ids[1, half:], attention_mask[1, half:] = pad, 0
    return input_ids, attention_mask


@torch.no_grad()
def _onnx_reference(
    model: PreTrainedModel, content: Mapping[str, torch.Tensor], trained: LoadedModel, rows: Rows
) -> dict[str, torch.Tensor]:
    """Returns the encoder's outputs for the inputs of the content, and held-out rows masked as in an evaluation."""
    encode, tensors = Embeddings(architecture_of(model).encoder, trained.carried.embedding), {}
    for name in [key.removesuffix(".input_ids") for key in content if key.endswith(".input_ids")]:
        mask = content[f"{name}.attention_mask"]
        hidden, *embedding = encode(content[f"{name}.input_ids"], mask)
        tensors[f"{name}.last_hidden_state"] = hidden[mask == 1]
        tensors |= {f"{name}.sentence_embedding": vectors for vectors in embedding}
    vocabulary = vocabulary_of_pretrained(trained.tokenizer, str(trained.model.name_or_path))
    frozen = FrozenRows(rows, HeldOut(), vocabulary.maskable, vocabulary.special)
    num_selected = 0
    for row_id in frozen.row_ids:
        [view] = cut(frozen.masked(row_id), architecture_of(model).num_positions, vocabulary.special)
        batch = collate([view.masked], vocabulary.special.pad)
        name = f"{MASKED}{row_id}"
        tensors |= {f"{name}.input_ids": batch.input_ids, f"{name}.selected": batch.selected}
        tensors[f"{name}.labels"] = batch.labels
        num_selected += len(batch.labels)
        if num_selected >= INT8_SELECTED:
            break
    return tensors
