"""A packed row: its tokens, and where the parts of documents in it begin."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Integer

from longmlm.data.vocabulary import SpecialTokens


@dataclass(frozen=True, slots=True)
class Row:
    """A row from packing to the model: tokens with special tokens, and the start and source of each document's part.

    A new column is a field here, a line in `shard_schema` and a line in `collate`; whoever cuts rows or replaces tokens
    uses the two methods.
    """

    input_ids: Integer[np.ndarray, " tokens"]
    document_starts: Integer[np.ndarray, " documents"]
    document_sources: Integer[np.ndarray, " documents"]

    def __len__(self) -> int:
        return len(self.input_ids)

    def with_input_ids(self, input_ids: Integer[np.ndarray, " tokens"]) -> Self:
        """Returns the row with other tokens at the same positions."""
        return replace(self, input_ids=input_ids)

    def window(self, begin: int, end: int, special: SpecialTokens) -> Self:
        """Returns the positions begin to end - 1 between special tokens of their own, so that `begin` moves to 1."""
        first = max(0, int(np.searchsorted(self.document_starts, begin, side="right")) - 1)
        last = int(np.searchsorted(self.document_starts, end))
        return replace(
            self,
            input_ids=np.concatenate([[special.cls], self.input_ids[begin:end], [special.sep]]),
            document_starts=np.maximum(self.document_starts[first:last], begin) - begin + 1,
            document_sources=self.document_sources[first:last],
        )
