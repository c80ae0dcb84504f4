"""Vectors of long documents from a released model, with transformers alone: the mean of the token vectors.

    python examples/embeddings.py out/domain/release first.txt second.txt third.txt

prints the cosine similarity of each pair of documents. A model that was only pretrained gives rough vectors: first
fine-tune it for similarity, for example with sentence-transformers, which loads the same folder.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer


@torch.no_grad()
def embed(folder: str, texts: list[str]) -> Tensor:
    """Returns a unit vector for each text; of a text that is longer than the model reads, the beginning is used."""
    tokenizer = AutoTokenizer.from_pretrained(folder)  # its model_max_length is the length that the model reads
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in texts:  # one by one: documents of different lengths would be padded to the longest
        batch = tokenizer(text, truncation=True, return_tensors="pt")
        vectors.append(model(**batch).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(vectors))


def main() -> None:
    """Prints the similarities of the documents that the command line names."""
    folder, *paths = sys.argv[1:]
    vectors = embed(folder, [Path(path).read_text(encoding="utf-8") for path in paths])
    for path, similarities in zip(paths, vectors @ vectors.T, strict=True):
        print(f"{path:30}", *(f"{similarity:6.3f}" for similarity in similarities.tolist()))


if __name__ == "__main__":
    main()
