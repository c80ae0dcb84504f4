"""Files of documents that a tiny model can learn."""

import json
import random
from pathlib import Path

CUES = {"blue": "water", "red": "house"}  # the word that gives the label away
FILLERS = ("the", "and", "was", "that", "with", "have")
NUM_CUES = 4  # in a document


def separable_file(path: Path, num_documents: int = 120, num_words: int = 4, is_multilabel: bool = False) -> Path:
    """Writes documents, each with the cue of its label at random places among other words, and returns the path.

    With several labels per document, each document has one or both.
    """
    drawn, lines = random.Random(0), []
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
        content = {
            "id": f"d{number}",
            "text": f"{' '.join(words)} {number}",
            "label": names if is_multilabel else names[0],
        }
        lines.append(json.dumps(content) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def labelled_file(path: Path, num_documents: int = 80, num_words: int = 40) -> Path:
    """Writes documents in which every cue, between other words, is a span with its label, and returns the path."""
    drawn, lines = random.Random(0), []
    for number in range(num_documents):
        text, spans = "", []
        for _ in range(drawn.randint(2, num_words)):
            name = drawn.choice([*CUES, *FILLERS])
            word = CUES.get(name, name)
            if name in CUES:
                spans.append({"start": len(text), "end": len(text) + len(word), "label": name})
            text += f"{word} "
        lines.append(json.dumps({"id": f"d{number}", "text": f"{text}{number}", "spans": spans}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
