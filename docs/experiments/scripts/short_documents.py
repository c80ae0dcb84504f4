"""Cuts the demo's novels into short documents in random order, so that the documents of a row have nothing in common.

    python docs/experiments/scripts/short_documents.py out/short-documents.jsonl

Each holds whole paragraphs, as many as make MIN_CHARACTERS: about 280 tokens. Their order follows from their hashes.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

TEXT = Path(__file__).parents[3] / "src/longmlm/bundled/text/demo.jsonl"
MIN_CHARACTERS = 1000


def short_documents(text: str) -> Iterator[str]:
    """Yields the text in parts of at least MIN_CHARACTERS that end with a paragraph; the last may be shorter."""
    part = ""
    for paragraph in text.split("\n\n"):
        part = f"{part}\n\n{paragraph}" if part else paragraph
        if len(part) >= MIN_CHARACTERS:
            yield part
            part = ""
    if part:
        yield part


if __name__ == "__main__":
    texts = [json.loads(line)["text"] for line in TEXT.read_text(encoding="utf-8").splitlines()]
    parts = sorted(
        (part for text in texts for part in short_documents(text)),
        key=lambda part: hashlib.sha256(part.encode()).digest(),
    )
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(f"{json.dumps({'text': part})}\n" for part in parts), encoding="utf-8")
    print(len(parts), "documents,", sum(map(len, parts)) // len(parts), "characters on average")
