"""Script that loads a released folder with plain transformers, without longmlm, and compares it with a reference.

python reload.py FOLDER REFERENCE.safetensors AUTO_CLASS TEXT.txt CODES prints a JSON object about the model that this
class of transformers loads. A masked language model fills in the mask in the text. CODES is a JSON list of the code on
the folder's card.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer, pipeline

ENCODER, ENCODER_INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
MLM, MLM_INT8 = "onnx/mlm.onnx", "onnx/mlm_int8.onnx"
CARRIED, MASKED = "carried.", "masked."  # prefixes of names in the reference
TOKENS = "logits_at"  # the indices of the tokens whose logits the reference has; without it, it has all
Compute = Callable[..., torch.Tensor]  # of ids, mask and perhaps indices of tokens; returns no padding


@torch.no_grad()
def compare(folder: str, reference: Path, auto_class: str, text: str) -> dict[str, object]:
    """Returns the largest difference of outputs, missing and unexpected weights, and fill-mask's answer on the text."""
    loader = getattr(transformers, auto_class)
    model, info = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tensors = load_file(reference)
    carried = {key.removeprefix(CARRIED): value for key, value in tensors.items() if key.startswith(CARRIED)}

    def compute_logits(input_ids: torch.Tensor, attention_mask: torch.Tensor, *tokens: torch.Tensor) -> torch.Tensor:
        return logits_of(model, input_ids, attention_mask, *tokens, **(global_mask(model, input_ids) if text else {}))

    def compute_states(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found = model.base_model(input_ids=input_ids, attention_mask=attention_mask, **global_mask(model, input_ids))
        return unpadded(found.last_hidden_state, attention_mask)

    model.eval()
    # before the pipeline, which moves the model to a GPU if there is one
    difference = torch.tensor(largest_difference(compute_logits, tensors, "logits"))
    if any(key.endswith(".last_hidden_state") for key in tensors):
        states_difference = torch.tensor(largest_difference(compute_states, tensors, "last_hidden_state"))
        difference = torch.maximum(difference, states_difference)  # unlike max, it keeps a NaN
    return {
        "largest_difference": float(difference),
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(set(info["unexpected_keys"]) - carried.keys()),
        "not_carried": sorted(key for key, value in carried.items() if not is_stored(Path(folder), key, value)),
        "decoder_is_tied": is_tied(model),
        "model_max_length": tokenizer.model_max_length,
        "truncation_side": tokenizer.truncation_side,
        "onnx": compare_onnx(Path(folder), tensors) if (Path(folder) / MLM).is_file() else None,
        **(filled_mask(model, tokenizer, text, compute_logits) if text else {}),
        "knows_longmlm": "longmlm" in sys.modules,
    }


def filled_mask(model: Any, tokenizer: Any, text: str, compute_logits: Compute) -> dict[str, object]:
    """Returns how many tokens the text has, and what the model fills in; no pipeline passes global tokens."""
    encoded = tokenizer(text, return_tensors="pt")
    if global_mask(model, encoded["input_ids"]):  # which the pipeline does not pass
        logits = compute_logits(encoded["input_ids"], encoded["attention_mask"])
        answer = tokenizer.decode(logits[encoded["input_ids"][0] == tokenizer.mask_token_id].argmax(-1))
    else:
        answer = pipeline("fill-mask", model=model, tokenizer=tokenizer)(text)[0]["token_str"]
    return {"text_tokens": encoded["input_ids"].shape[1], "answer": answer}


def logits_of(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, tokens: torch.Tensor | None = None, **more: Any
) -> torch.Tensor:
    """Returns the logits of each text, or of the tokens that are not padding: all, or those at the indices `tokens`.

    For `tokens`, the encoder returns their hidden states only, so that no logits of others are computed.
    """
    if tokens is None:
        output = model(input_ids=input_ids, attention_mask=attention_mask, **more)
        return unpadded(token_logits(output), attention_mask)

    def select(_module: object, _inputs: object, output: Any) -> None:
        output.last_hidden_state = unpadded(output.last_hidden_state, attention_mask)[tokens].unsqueeze(0)

    with model.base_model.register_forward_hook(select):
        return token_logits(model(input_ids=input_ids, attention_mask=attention_mask, **more))[0]


def token_logits(output: Any) -> torch.Tensor:
    """Returns the logits in a model's output, of a model for pairs those of the tokens."""
    return output.prediction_logits if hasattr(output, "prediction_logits") else output.logits


def unpadded(output: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Returns one line for each token that is not padding, or the output itself if it has one line for each text."""
    return output if output.ndim == 2 else output[attention_mask == 1]  # noqa: PLR2004


def global_mask(model: Any, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the argument that a Longformer with global tokens needs, and no argument for other models."""
    number = getattr(model.config, "num_global_tokens", 0)
    if not number:
        return {}
    is_global = torch.zeros_like(input_ids)
    is_global[:, :number] = 1
    return {"global_attention_mask": is_global}


def is_tied(model: Any) -> bool:
    """Returns whether the decoder is the embedding, or there is none, as in DeBERTa's head and in a classifier."""
    decoder, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    return decoder is None or decoder.weight is embedding or decoder.weight.shape != embedding.shape


def is_stored(folder: Path, key: str, value: torch.Tensor) -> bool:
    """Returns whether the folder stores this weight, bit for bit."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if key in file.keys():  # noqa: SIM118 - it is not a mapping
                stored = file.get_tensor(key)
                return stored.dtype == value.dtype and torch.equal(stored, value)
    return False


def largest_difference(compute: Compute, tensors: Mapping[str, torch.Tensor], output: str) -> float:
    """Returns the largest difference from the reference's output; NaN if any number is NaN."""
    differences = [(actual - expected).abs().max() for actual, expected in results(compute, tensors, output)]
    return float(torch.stack(differences).max())


def results(
    compute: Compute, tensors: Mapping[str, torch.Tensor], output: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the computed and the expected output for each input whose output is in the reference."""
    for name in sorted(key.removesuffix(f".{output}") for key in tensors if key.endswith(f".{output}")):
        inputs = [tensors[f"{name}.input_ids"], tensors[f"{name}.attention_mask"]]
        if output == "logits" and f"{name}.{TOKENS}" in tensors:
            inputs.append(tensors[f"{name}.{TOKENS}"])
        yield compute(*inputs), tensors[f"{name}.{output}"]


def compare_onnx(folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Returns how ONNX outputs differ: in value for fp32, in predicted tokens and cosine similarity for int8."""
    mlm, encoder = run_onnx(folder / MLM, "logits"), run_onnx(folder / ENCODER, "last_hidden_state")
    encoder_difference = largest_difference(encoder, tensors, "last_hidden_state")
    if any(key.endswith(".sentence_embedding") for key in tensors):
        embedding = run_onnx(folder / ENCODER, "sentence_embedding")
        encoder_difference = max(encoder_difference, largest_difference(embedding, tensors, "sentence_embedding"))
    is_correct = {file: predictions(run_onnx(folder / file, "logits"), tensors) for file in (MLM, MLM_INT8)}
    return {
        "logits_difference": largest_difference(mlm, tensors, "logits"),
        "encoder_difference": encoder_difference,
        "int8_selected": len(is_correct[MLM]),
        "int8_lost": int((is_correct[MLM] & ~is_correct[MLM_INT8]).sum()),
        "int8_gained": int((~is_correct[MLM] & is_correct[MLM_INT8]).sum()),
        "int8_similarity": similarity(run_onnx(folder / ENCODER_INT8, "last_hidden_state"), tensors),
    }


def predictions(compute: Compute, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns, for each selected token of the reference's masked rows, whether it is predicted correctly."""
    is_correct = []
    for name in sorted(key.removesuffix(".labels") for key in tensors if key.startswith(MASKED) and "labels" in key):
        input_ids = tensors[f"{name}.input_ids"]
        logits = compute(input_ids, torch.ones_like(input_ids))[tensors[f"{name}.selected"]]
        is_correct.append(logits.argmax(-1) == tensors[f"{name}.labels"])
    return torch.cat(is_correct)


def similarity(compute: Compute, tensors: Mapping[str, torch.Tensor]) -> float:
    """Returns the mean cosine similarity between token vectors and the reference."""
    pairs = results(compute, tensors, "last_hidden_state")
    return float(torch.cat([torch.cosine_similarity(actual, expected, dim=-1) for actual, expected in pairs]).mean())


def run_onnx(graph: Path, output: str) -> Compute:
    """Returns a function from token ids and attention mask to an output without padding, computed by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

    def compute(
        input_ids: torch.Tensor, attention_mask: torch.Tensor, tokens: torch.Tensor | slice = slice(None)
    ) -> torch.Tensor:
        inputs = {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
        return unpadded(torch.from_numpy(session.run([output], inputs)[0]), attention_mask)[tokens]

    return compute


def run_codes(folder: str, codes: Sequence[str]) -> None:
    """Runs the code that a card shows, which reads the model's folder from the variable FOLDER."""
    for code in codes:
        exec(code, {"FOLDER": folder})  # noqa: S102 - from longmlm's templates, without any value


def main(folder: str, reference: str, auto_class: str, text: str, codes: str) -> None:
    """Compares, runs the code and prints the report."""
    report = compare(folder, Path(reference), auto_class, Path(text).read_text(encoding="utf-8"))
    run_codes(folder, json.loads(codes))
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
