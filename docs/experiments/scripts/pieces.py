"""Cuts long documents into pieces of whole paragraphs, each with the other fields of its document.

    python docs/experiments/scripts/pieces.py novels.jsonl pieces.jsonl --characters 8000 --pieces 16

A document's pieces lie at equal distances; its beginning and its end are not among them if it has more than two.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def pieces_of(text: str, num_characters: int, num_pieces: int) -> Iterator[str]:
    """Yields up to `num_pieces` pieces of at least `num_characters`, without the document's first and last one."""
    paragraphs = [paragraph for paragraph in text.split("\n") if paragraph.strip()]
    pieces, current = [], []
    for paragraph in paragraphs:
        current.append(paragraph)
        if sum(map(len, current)) >= num_characters:
            pieces.append("\n".join(current))
            current = []
    inner = pieces[1:-1] or pieces
    if not inner:
        return
    for number in np.unique(np.linspace(0, len(inner) - 1, num_pieces).round().astype(int)):
        yield inner[number]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--characters", type=int, default=8000)
    parser.add_argument("--pieces", type=int, default=16)
    options = parser.parse_args()
    with options.documents.open(encoding="utf-8") as source, options.output.open("w", encoding="utf-8") as output:
        for line in source:
            document = json.loads(line)
            for number, text in enumerate(pieces_of(document["text"], options.characters, options.pieces)):
                piece = document | {"id": f"{document['id']}/{number}", "text": text}
                output.write(json.dumps(piece, ensure_ascii=False) + "\n")
