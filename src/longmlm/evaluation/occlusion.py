"""Explanations of single documents: which paragraphs a label comes from, and which spans a model read and found."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int64

from longmlm.artifacts.downstream import Explanation, OccludedPart, Prediction, SpanOutcome
from longmlm.data.labelled import LabelledDocument
from longmlm.data.sentences import has_spaces, sentence_starts

MAX_PARTS = 24
EXCERPT = 160  # characters
PARAGRAPH = re.compile(r"\S.*")


def longest_documents(documents: Sequence[LabelledDocument], test: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns the numbers of the `count` longest test documents, the same ones for every arm."""
    return tuple(sorted(test, key=lambda number: (-len(documents[number].text), number))[:count])


def occlusion(
    document: LabelledDocument,
    prediction: Prediction,
    labels: Sequence[str],
    probabilities: Callable[[Sequence[str]], Float[np.ndarray, "texts labels"]],
    characters_read: Int64[np.ndarray, "spans 2"],
) -> Explanation:
    """Returns by how much the probability of the predicted labels falls when a part of the document is removed.

    `probabilities` are those of all `labels` for each text; `characters_read` has start and end of each span that the
    arm reads of the document. Without a predicted label, the likeliest one is explained.
    """
    parts = parts_of(document.text)
    parts = parts if len(parts) > 1 else []
    begins, ends = characters_read.T
    is_read = [bool(((begins < end) & (start < ends)).any()) for start, end in parts]
    read = [
        document.text[:start] + document.text[end:]
        for (start, end), is_part_read in zip(parts, is_read, strict=True)
        if is_part_read
    ]
    table = np.asarray(probabilities([document.text, *read]), np.float64)
    explained = prediction.predicted or (labels[int(table[0].argmax())],)
    of_labels = 100 * table[:, [labels.index(label) for label in explained]].mean(axis=1)
    effects = iter((of_labels[0] - of_labels[1:]).tolist())
    return Explanation(
        document=document.id,
        labels=document.labels,
        predicted=explained,
        is_predicted=bool(prediction.predicted),
        probability=float(of_labels[0]),
        parts=tuple(
            OccludedPart(
                start=start,
                end=end,
                excerpt=_excerpt(document.text[start:end]),
                effect=next(effects) if is_part_read else 0.0,
                is_read=is_part_read,
            )
            for (start, end), is_part_read in zip(parts, is_read, strict=True)
        ),
    )


def span_outcomes(
    document: LabelledDocument, prediction: Prediction, offsets: Int64[np.ndarray, "tokens 2"]
) -> Explanation:
    """Returns for each true span whether it begins in a token that the model read, and whether it was predicted.

    `offsets` are the characters of the tokens that the model read.
    """
    outcomes = tuple(
        SpanOutcome(
            text=_excerpt(document.text[span.start : span.end]),
            label=span.label,
            token=token,
            is_read=bool(((offsets[:, 0] <= span.start) & (span.start < offsets[:, 1])).any()),
            is_found=span in prediction.predicted_spans,
            start=span.start,
        )
        for span, token in zip(prediction.spans, prediction.token_starts, strict=False)
    )
    return Explanation(document=document.id, spans=outcomes)


def parts_of(text: str) -> list[tuple[int, int]]:
    """Returns start and end of each paragraph, which is a line with text; of each sentence if there is only one.

    Those of a text with more than 24 are merged where they start in the same 24th of it.
    """
    units = [match.span() for match in PARAGRAPH.finditer(text)]
    if len(units) == 1:
        starts = sentence_starts(text, "en" if has_spaces(text) else "zh").tolist()
        units = [*pairwise([*starts, len(text)])]
    if len(units) <= MAX_PARTS:
        return units
    merged: dict[int, tuple[int, int]] = {}
    for start, end in units:
        part = start * MAX_PARTS // len(text)
        merged[part] = (merged.get(part, (start, end))[0], end)
    return [*merged.values()]


def _excerpt(text: str) -> str:
    """Returns the beginning of a text on one line."""
    line = " ".join(text[: 2 * EXCERPT].split())
    return line if len(line) <= EXCERPT and len(text) <= 2 * EXCERPT else f"{line[:EXCERPT].rstrip()} …"
