"""Labelled documents for tests: two classes that differ in words at the beginning and at the end."""

import json
from pathlib import Path

WORDS = {"sea": "harbour sailor tide anchor wave", "land": "meadow farmer plough barn orchard"}
FILLER = "The people of this story walked on and talked about many things that had happened before. "


def labelled_records(num_documents: int) -> list[dict[str, str]]:
    """Returns documents of about 220 tokens, every other one with the same label."""
    labels = [list(WORDS)[number % 2] for number in range(num_documents)]
    return [
        {"id": f"d{number}", "text": f"{WORDS[label]} {number}. {FILLER * 10}{WORDS[label]}.", "label": label}
        for number, label in enumerate(labels)
    ]


def write_records(path: Path, records: list[dict[str, str]]) -> None:
    """Writes a line of JSON per record."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
