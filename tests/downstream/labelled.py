"""Labelled records in files: two classes with different words, which a tiny model can learn, and faulty records."""

import json
import random
from pathlib import Path
from typing import Any

from longmlm.downstream.documents import LabelledCorpus, read_labelled
from longmlm.downstream.settings import LabelledData, LabelledTask, TaskKind

Records = list[dict[str, Any]]

WORDS = {"sea": "harbour sailor tide anchor wave", "land": "meadow farmer plough barn orchard"}
FILLER = "The people of this story walked on and talked about many things that had happened before. "
CUES = {"blue": "water", "red": "house"}  # the word that gives the label away
FILLERS = ("the", "and", "was", "that", "with", "have")
NUM_CUES = 4  # in a document


def json_bytes(records: Records) -> bytes:
    """Returns the records as JSON lines."""
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def read(folder: Path, records: Records, kind: TaskKind = "classification", **data: Any) -> LabelledCorpus:
    """Returns what is read from the records in a file, documents.jsonl."""
    path = folder / "documents.jsonl"
    path.write_bytes(json_bytes(records))
    return read_labelled(LabelledTask(kind=kind, data=LabelledData(files=(str(path),), **data)))


def labelled(*labels: Any) -> Records:
    """Returns a record with each of these labels."""
    return [{"id": f"d{n}", "text": f"Text {n}.", "label": label} for n, label in enumerate(labels)]


def reasons(corpus: LabelledCorpus) -> list[str]:
    """Returns why records were set aside."""
    return [item.reason for item in corpus.set_aside]


def two_classes(num_documents: int) -> Records:
    """Returns documents of about 220 tokens, every other one with the same label, by their first and last words."""
    labels = [list(WORDS)[number % 2] for number in range(num_documents)]
    return [
        {"id": f"d{number}", "text": f"{WORDS[label]} {number}. {FILLER * 10}{WORDS[label]}.", "label": label}
        for number, label in enumerate(labels)
    ]


def separable_file(path: Path, num_documents: int = 120, num_words: int = 4, is_multilabel: bool = False) -> Path:
    """Writes documents, each with the cue of its label at random places among other words, and returns the path.

    With several labels per document, each document has one or both.
    """
    drawn, records = random.Random(0), []
    for number in range(num_documents):
        names = [
            name
            for place, name in enumerate(CUES)
            if (number % 3 in (place, 2) if is_multilabel else number % 2 == place)
        ]
        words = [drawn.choice(FILLERS) for _ in range(drawn.randint(num_words // 2, num_words))]
        for name in names:
            for _ in range(NUM_CUES // len(names)):
                words.insert(drawn.randrange(len(words) + 1), CUES[name])
        text, label = f"{' '.join(words)} {number}", names if is_multilabel else names[0]
        records.append({"id": f"d{number}", "text": text, "label": label})
    path.write_bytes(json_bytes(records))
    return path


def labelled_file(path: Path, num_documents: int = 80, num_words: int = 40) -> Path:
    """Writes documents in which every cue, between other words, is a span with its label, and returns the path."""
    drawn, records = random.Random(0), []
    for number in range(num_documents):
        text, spans = "", []
        for _ in range(drawn.randint(2, num_words)):
            name = drawn.choice([*CUES, *FILLERS])
            word = CUES.get(name, name)
            if name in CUES:
                spans.append({"start": len(text), "end": len(text) + len(word), "label": name})
            text += f"{word} "
        records.append({"id": f"d{number}", "text": f"{text}{number}", "spans": spans})
    path.write_bytes(json_bytes(records))
    return path
