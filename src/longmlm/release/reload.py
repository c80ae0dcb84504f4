"""A released folder to the differences from a reference, with plain transformers: a script that knows no longmlm.

python reload.py FOLDER REFERENCE.safetensors TEXT.txt prints a JSON object.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline


@torch.no_grad()
def compare(folder: str, reference: Path, text: str) -> dict[str, object]:
    """Returns the largest difference of logits, what loading found amiss, and what fill-mask makes of the text."""
    model, info = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tensors = load_file(reference)
    differences = []
    for name in sorted(key.removesuffix(".input_ids") for key in tensors if key.endswith(".input_ids")):
        mask = tensors[f"{name}.attention_mask"]
        logits = model.eval()(input_ids=tensors[f"{name}.input_ids"], attention_mask=mask).logits[mask == 1]
        differences.append((logits - tensors[f"{name}.logits"]).abs().max())
    answers = pipeline("fill-mask", model=model, tokenizer=tokenizer)(text)
    return {
        "largest_difference": float(torch.stack(differences).max()),  # not a number where one of them is none
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "decoder_is_tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "model_max_length": tokenizer.model_max_length,
        "text_tokens": len(tokenizer(text)["input_ids"]),
        "answer": answers[0]["token_str"],
        "knows_longmlm": "longmlm" in sys.modules,
    }


def run_card(folder: Path) -> None:
    """Runs the code of the folder's card, where there is one, on the folder itself."""
    card = folder / "README.md"
    if card.is_file():
        code = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)[0]
        exec(re.sub(r'model="[^"]*"', lambda _: f"model={str(folder)!r}", code), {})  # noqa: S102 - what others will type


if __name__ == "__main__":
    folder, reference, text = sys.argv[1:]
    found = compare(folder, Path(reference), Path(text).read_text(encoding="utf-8"))
    run_card(Path(folder))
    print(json.dumps(found))
