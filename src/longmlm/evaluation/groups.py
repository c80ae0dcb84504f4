"""Groups of selected tokens: by offset in the document, by where they occur again, and by how far from there.

A token *occurs again* where the same token stands at another position of the row and the model sees it there: it was
not replaced by the mask token or a random one. Special tokens are never selected. A selected token is in one group:

- chunk: it occurs again in its chunk of the base model (`chunks` in frozen.py cuts the row);
- row: it occurs again in the row, but not in its chunk, so that only a longer model sees it;
- nowhere: it does not occur again.

Its distance is that to the nearest of all its other occurrences. For example, a base model of 6 positions reads chunks
of 4 tokens; the tokens in brackets are selected, and all of them are replaced by the mask token:

    position   1   2   3   4    5   6   7   8    9  10  11  12
    token      A   B  [A]  C | [D]  B  [E] [C] | [B] F   D  [E]

    A: chunk, distance 2           D: row, distance 6           C: row, distance 4           B: row, distance 3
    both E: nowhere, since each of them hides the other

If the long model reads each document of a row by itself, only the token's own document counts: a token that occurs
again in another document only is in `nowhere`, even if the base model sees both in one chunk. The groups then say what
the long model can use, for every model that is measured.
"""

import functools

import numpy as np
from jaxtyping import Int64

from longmlm.artifacts.accuracy import GROUPINGS, Grouping, chunk_content, group_ends, group_starts
from longmlm.batches.masking import MaskedRow

FAR = np.iinfo(np.int64).max // 2


def groups_of(
    masked: MaskedRow, base_positions: int, row_length: int, isolates_documents: bool
) -> Int64[np.ndarray, "groupings selected"]:
    """Returns the number of the group of each selected token, by GROUPINGS and then selected position.

    The groups of all groupings are numbered one after another.
    """
    selected, row, length = masked.selected, masked.row, chunk_content(base_positions)
    before, after = _distances(masked, isolates_documents)
    nearest, in_chunk = np.minimum(before, after), (selected - 1) % length
    is_in_chunk = (before <= in_chunk) | (after < length - in_chunk)
    values: dict[Grouping, Int64[np.ndarray, " selected"]] = {
        "position": selected,
        "offset": row.document_offsets(selected),
        "occurrence": np.where(is_in_chunk, 0, np.where(nearest < FAR, 1, 2)),
        "distance": np.minimum(nearest, row_length),
    }
    pairs = zip(_edges(base_positions, row_length), (values[grouping] for grouping in GROUPINGS), strict=True)
    groups = np.stack([np.searchsorted(edges, own, side="right") - 1 for edges, own in pairs])
    firsts = (0, *group_ends(base_positions, row_length)[:-1])
    return groups + np.array(firsts)[:, None]


@functools.cache
def _edges(base_positions: int, row_length: int) -> list[Int64[np.ndarray, " groups"]]:
    return [np.array(group_starts(grouping, base_positions, row_length)) for grouping in GROUPINGS]


def _distances(masked: MaskedRow, isolates_documents: bool) -> Int64[np.ndarray, "2 selected"]:
    """Returns the distances to the nearest other occurrence before and after each selected token; FAR without one.

    Each token of the row has a key, by which the same tokens are neighbours, at the distance of their positions, and
    different ones, or those of different documents, are further from each other than any two positions.
    """
    row, selected = masked.row, masked.selected
    tokens, positions = row.input_ids.astype(np.int64), np.arange(len(row))
    is_seen = np.ones(len(row), dtype=bool)
    is_seen[selected] = tokens[selected] == masked.labels
    tokens[selected] = masked.labels
    if isolates_documents:
        tokens += (tokens.max() + 1) * np.searchsorted(row.document_starts[1:], positions, side="right")
    keys = 2 * len(row) * tokens + positions
    seen, own = np.concatenate([[-FAR], np.sort(keys[is_seen]), [FAR]]), keys[selected]
    before = own - seen[np.searchsorted(seen, own) - 1]
    after = seen[np.searchsorted(seen, own, side="right")] - own
    distances = np.stack([before, after])
    return np.where(distances < len(row), distances, FAR)
