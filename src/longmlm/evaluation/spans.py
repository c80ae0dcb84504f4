"""Predicted classes of tokens to labelled spans: which window decides for a token, and BIO decoding.

Windows of 8 tokens with special tokens s over a document of 9 tokens; a token's margin is its distance to the nearer
end of its window:

    window 1   s 0 1 2 3 4 5 s       margins of 0 to 5   1 2 3 3 2 1
    window 2         s 3 4 5 6 7 8 s          of 3 to 8   1 2 3 3 2 1

Window 1 decides for tokens 0 to 4 and window 2 for 5 to 8: token 4 has margin 2 in both, and the first one decides.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int64

from longmlm.artifacts.downstream import LabelledSpan, Prediction
from longmlm.batches.examples import Example, bio_labels
from longmlm.data.labelled import LabelledCorpus

OUTSIDE = 0  # the class O


def deciding_tokens(
    lengths: Sequence[int], token_indices: Int64[np.ndarray, " tokens"], num_tokens: int
) -> Int64[np.ndarray, " num_tokens"]:
    """Returns for each token of a document which token of its windows, one after the other, decides; -1 if none has it.

    `lengths` are those of the windows, `token_indices` as in Example. The window decides in which the token is farther
    from the nearer end, special tokens included; of two such windows, the first.
    """
    margins = np.concatenate([np.minimum(np.arange(length), np.arange(length)[::-1]) for length in lengths])
    order = np.lexsort((-margins, token_indices))
    tokens, first = np.unique(token_indices[order], return_index=True)
    deciding = np.full(num_tokens, -1)
    deciding[tokens[tokens >= 0]] = order[first[tokens >= 0]]
    return deciding


def cut_distances(
    lengths: Sequence[int], token_indices: Int64[np.ndarray, " tokens"], num_tokens: int
) -> Int64[np.ndarray, " tokens"]:
    """Returns how far each token of a document's windows is from the nearest cut of its window; -1 without a cut.

    Arguments are as in deciding_tokens. In the example above, window 1 is cut before token 6, and window 2 before token
    3: token 3 has distance 3 in window 1, and 0 in window 2. The ends of the document are no cuts.
    """
    distances = []
    for window in np.split(token_indices, np.cumsum(lengths)[:-1]):
        content = window[1:-1]  # without special tokens
        cuts = np.flatnonzero(np.diff(content, prepend=-1, append=num_tokens) != 1)
        nearest = np.abs(np.arange(len(content))[:, None] - cuts).min(axis=1, initial=num_tokens)
        distances += [[-1], np.where(nearest < num_tokens, nearest, -1), [-1]]
    return np.concatenate(distances).astype(np.int64)


def decode_bio(
    classes: Int64[np.ndarray, " num_tokens"], offsets: Int64[np.ndarray, "num_tokens 2"], names: Sequence[str]
) -> tuple[LabelledSpan, ...]:
    """Returns the spans that the classes of a document's tokens mean, by the rule of conlleval and seqeval.

    B-x opens a span; I-x continues one of label x and otherwise opens one, as B-x does; any other class closes it.
    `names` are those of the classes, as of bio_labels. A token without characters of its own, such as a lone space,
    changes nothing. Tokens can share a character, of which they are bytes: if a span has the first, it has the others.
    """
    spans: list[LabelledSpan] = []
    is_open = False
    for name, (start, end) in zip((names[number] for number in classes), offsets.tolist(), strict=True):
        if start == end:
            continue
        kind, _, label = name.partition("-")
        is_shared = bool(spans) and start < spans[-1].end
        if is_shared or (kind == "I" and is_open and spans[-1].label == label):
            spans[-1] = replace(spans[-1], end=max(end, spans[-1].end))
        elif label:
            spans.append(LabelledSpan(start, end, label))
        is_open = bool(label) or is_shared
    return tuple(spans)


def token_starts(spans: Sequence[LabelledSpan], offsets: Int64[np.ndarray, "num_tokens 2"]) -> tuple[int, ...]:
    """Returns the index of the token in which each span begins; for a span after the last token, that of the last."""
    ends = np.maximum.accumulate(offsets[:, 1])
    indices = np.searchsorted(ends, [span.start for span in spans], side="right")
    return tuple(np.minimum(indices, max(0, len(ends) - 1)).tolist())


def labelled(corpus: LabelledCorpus, example: Example, classes: Int64[np.ndarray, " tokens"]) -> Prediction:
    """Returns the true and predicted spans of a document, from the predicted class of each token of its inputs.

    Tokens that the model did not read are predicted to have no label.
    """
    document = corpus.documents[example.document]
    assert example.offsets is not None
    assert example.token_indices is not None
    windows = [len(one) for one in example.inputs], example.token_indices, example.num_tokens
    deciding = deciding_tokens(*windows)
    merged = np.where(deciding < 0, OUTSIDE, classes[deciding])
    predicted = decode_bio(merged, example.offsets, bio_labels(corpus.labels))
    starts = token_starts((*document.spans, *predicted), example.offsets)
    distances = np.append(np.where(deciding < 0, -1, cut_distances(*windows)[deciding]), -1)  # of no token
    return Prediction(
        document=document.id,
        num_tokens=example.num_tokens,
        spans=document.spans,
        predicted_spans=predicted,
        token_starts=starts,
        cut_distances=tuple(distances[[*starts]].tolist()),
    )
