"""Embeds long documents with a released model: a vector for each, the mean of the vectors of its tokens.

    python embeddings.py MODEL DOCUMENTS.jsonl VECTORS.npy

MODEL is a folder that longmlm released, or a hub name; each line of DOCUMENTS.jsonl has a field "text". The script
needs torch, transformers and numpy, not longmlm. The vectors have length 1, so their dot products are cosine
similarities. Those of a pretrained model show topic and style; for search, fine-tune the model first, for example with
sentence-transformers, which loads the same folder.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer


def read_texts(path: Path) -> list[str]:
    """Returns the texts of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines if line.strip()]


@torch.inference_mode()
def embed(model_name: str, texts: list[str], texts_per_batch: int = 8) -> tuple[np.ndarray, int]:
    """Returns a row for each text, and how many texts are longer than the model reads: their ends are ignored."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(model_name, dtype=torch.float32).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    longest = tokenizer.model_max_length  # a release has the number of positions here
    lengths = [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]
    vectors = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    order = np.argsort(lengths)  # neighbours of about the same length need little padding
    for begin in range(0, len(texts), texts_per_batch):
        numbers = order[begin : begin + texts_per_batch]
        chosen = [texts[number] for number in numbers]
        batch = tokenizer(chosen, truncation=True, max_length=longest, padding=True, return_tensors="pt").to(device)
        hidden = model(**batch).last_hidden_state
        is_token = batch["attention_mask"].unsqueeze(-1)
        means = (hidden * is_token).sum(1) / is_token.sum(1)
        vectors[numbers] = torch.nn.functional.normalize(means, dim=1).cpu().numpy()
    return vectors, sum(length > longest for length in lengths)


def main() -> None:
    """Writes the vectors, and prints the two documents that are most alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("documents", type=Path)
    parser.add_argument("vectors", type=Path)
    arguments = parser.parse_args()
    texts = read_texts(arguments.documents)
    vectors, num_cut = embed(arguments.model, texts)
    np.save(arguments.vectors, vectors)
    print(f"{arguments.vectors}: {vectors.shape[0]} vectors of {vectors.shape[1]} numbers")
    print(f"{num_cut} documents are longer than the model reads and were cut")
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -1)
    first, second = np.unravel_index(similarities.argmax(), similarities.shape)
    print(f"most alike ({similarities.max():.3f}): documents {first} and {second}")


if __name__ == "__main__":
    main()
