"""Script that loads a released folder with plain transformers, without longmlm, and compares it with a reference.

python reload.py FOLDER REFERENCE.safetensors TEXT.txt prints a JSON object.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

LOADING = re.compile(r'(model=|from_pretrained\(|cached_file\()"[^"]*"')


@torch.no_grad()
def compare(folder: str, reference: Path, text: str) -> dict[str, object]:
    """Returns the largest difference of logits, missing and unexpected weights, and fill-mask's answer on the text."""
    model, info = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tensors = load_file(reference)

    def logits_of(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return model.eval()(input_ids=input_ids, attention_mask=attention_mask).logits

    graph = Path(folder) / "model.onnx"
    difference = largest_difference(
        logits_of, tensors
    )  # before the pipeline, which moves the model to a GPU if there is one
    answers = pipeline("fill-mask", model=model, tokenizer=tokenizer)(text)
    return {
        "largest_difference": difference,
        "onnx_difference": largest_difference(run_onnx(graph), tensors) if graph.is_file() else None,
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "decoder_is_tied": is_tied(model),
        "model_max_length": tokenizer.model_max_length,
        "text_tokens": len(tokenizer(text)["input_ids"]),
        "answer": answers[0]["token_str"],
        "knows_longmlm": "longmlm" in sys.modules,
    }


def is_tied(model: Any) -> bool:
    """Returns whether the model decodes with its embedding, as DeBERTa's head without a decoder of its own does."""
    decoder, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    return decoder is embedding or decoder.shape != embedding.shape


def largest_difference(
    logits_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> float:
    """Returns the largest difference from the reference's logits over unpadded tokens; NaN if any logit is NaN."""
    differences = []
    for name in sorted(key.removesuffix(".input_ids") for key in tensors if key.endswith(".input_ids")):
        mask = tensors[f"{name}.attention_mask"]
        logits = logits_of(tensors[f"{name}.input_ids"], mask)[mask == 1]
        differences.append((logits - tensors[f"{name}.logits"]).abs().max())
    return float(torch.stack(differences).max())


def run_onnx(graph: Path) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Returns a function from token ids and attention mask to logits, computed by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

    def logits_of(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        inputs = {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
        return torch.from_numpy(session.run(["logits"], inputs)[0])

    return logits_of


def run_card(folder: Path) -> None:
    """Runs the Python code in the folder's card, if it has one, with the folder itself in place of the model's name."""
    card = folder / "README.md"
    if card.is_file():
        code = "\n".join(re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL))
        exec(LOADING.sub(lambda call: f"{call[1]}{str(folder)!r}", code), {})  # noqa: S102 - it is what users will run


if __name__ == "__main__":
    folder, reference, text = sys.argv[1:]
    report = compare(folder, Path(reference), Path(text).read_text(encoding="utf-8"))
    run_card(Path(folder))
    print(json.dumps(report))
