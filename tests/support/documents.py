"""Labelled documents made by hand: examples without a tokenizer, and files of documents that a tiny model can learn."""

import json
import random
from pathlib import Path

import numpy as np

from longmlm.batches.examples import IGNORED, Example
from longmlm.data.labelled import LabelledCorpus, LabelledDocument

CUES = {"blue": "water", "red": "house"}  # the word that gives the label away
FILLERS = ("the", "and", "was", "that", "with", "have")
TOPICS = ["again", "all", "but", "for", "her", "him", "not", "our", "said", "there", "they", "what", "when", "who"]
NUM_CUES = 4  # in a document
MAX_TOKEN = 250


def random_examples(
    lengths: list[list[int]], num_labels: int = 3, is_multilabel: bool = False, seed: int = 0
) -> tuple[Example, ...]:
    """Returns examples with random tokens: for each document, the lengths of its inputs."""
    generator = np.random.default_rng(seed)
    return tuple(
        Example(
            document=number,
            inputs=tuple(generator.integers(5, MAX_TOKEN, length) for length in own),
            target=(
                generator.integers(0, 2, num_labels).astype(np.float32)
                if is_multilabel
                else np.array(number % num_labels)
            ),
            num_tokens=sum(own),
        )
        for number, own in enumerate(lengths)
    )


def labelled_example(document: int, classes: list[list[int]]) -> Example:
    """Returns an example for labelling: the class of each token, for each window, between two special tokens."""
    targets = [np.array([IGNORED, *own, IGNORED]) for own in classes]
    indices = [np.array([-1, *range(len(own)), -1]) for own in classes]
    num_tokens = max(map(len, classes))
    return Example(
        document=document,
        inputs=tuple(np.full(len(target), 7) for target in targets),
        target=np.concatenate(targets),
        num_tokens=num_tokens,
        offsets=np.stack([np.arange(num_tokens), np.arange(num_tokens) + 1], axis=1),
        token_indices=np.concatenate(indices),
    )


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


def pairs_file(path: Path, num_pairs: int = 400, num_words: int = 4) -> Path:
    """Writes pairs of texts, each with one topic word, and returns the path; pairs with equal topics have the score 5.

    All other words are drawn at random, and pairs with other topics have the scores 0, 1 and 2.
    """
    drawn, lines = random.Random(0), []
    for number in range(num_pairs):
        first, other = drawn.sample(TOPICS, 2)
        texts = []
        for topic in (first, first if number % 2 else other):
            words = [drawn.choice(FILLERS) for _ in range(drawn.randint(num_words // 2, num_words))]
            words.insert(drawn.randrange(len(words) + 1), topic)
            texts.append(" ".join(words))
        score = 5 if number % 2 else drawn.randrange(3)
        lines.append(json.dumps({"id": f"p{number}", "text": texts[0], "text2": texts[1], "label": score}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def corpus_of(labels: list[tuple[str, ...]], is_multilabel: bool = False) -> LabelledCorpus:
    """Returns a corpus whose documents have these labels."""
    documents = tuple(LabelledDocument(id=f"d{number}", text="text", labels=own) for number, own in enumerate(labels))
    return LabelledCorpus(documents, tuple(sorted({label for own in labels for label in own})), is_multilabel, ())
