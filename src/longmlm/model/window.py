"""Which tokens attend to which: a window around each token, and a few global tokens, in all layers or the lowest ones.

Example: each_side = 1, num_global = 1, a row of five tokens. A cross marks what a token (line) attends to:

    0  x x x x x    token 0 is global: it attends to all tokens, and all attend to it
    1  x x x . .
    2  x x x x .
    3  x . x x x
    4  x . . x x
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from longmlm.artifacts.provenance import Extension
from longmlm.errors import counted
from longmlm.model.architecture import NUM_GLOBAL
from longmlm.settings.extend import ExtendRecipe

MIN_BLOCK = 128  # queries; of 64, 128, 256 and 512, 128 is the fastest for a window of 64 or 256


class Block(NamedTuple):
    """Consecutive queries, the parts of the row that hold their keys, and which key each query sees (None: all).

    `heads` are the attention heads to compute; by default all.
    """

    queries: slice
    keys: tuple[slice, ...]
    visible: Bool[Tensor, "queries keys"] | None = None
    heads: slice = slice(None)

    @property
    def num_pairs(self) -> int:
        """Pairs of query and key in a head."""
        return (self.queries.stop - self.queries.start) * sum(part.stop - part.start for part in self.keys)

    def shifted(self, start: int) -> "Block":
        """Returns the block for a row that begins at `start`."""
        queries, *keys = (slice(part.start + start, part.stop + start) for part in (self.queries, *self.keys))
        return self._replace(queries=queries, keys=tuple(keys))

    def keys_of(self, states: Tensor, dim: int) -> Tensor:
        """Returns the states of the keys, which lie along `dim`."""
        parts = [states.narrow(dim, part.start, part.stop - part.start) for part in self.keys]
        return torch.cat(parts, dim) if len(parts) > 1 else parts[0]

    def add_to_keys(
        self, total: Float[Tensor, "1 heads tokens width"], added: Float[Tensor, "some keys width"]
    ) -> None:
        """Adds gradients of the block's keys or values to those of all tokens."""
        sizes = [part.stop - part.start for part in self.keys]
        for part, values in zip(self.keys, added.split(sizes, 1), strict=True):
            total[0, self.heads, part].add_(values)


@dataclass(frozen=True, slots=True)
class Window:
    """Each token attends to `each_side` tokens before it and after it; the first `num_global` tokens are global.

    This holds in the `num_layers` lowest layers; None for all. The layers above attend to the whole row.
    """

    each_side: int
    num_global: int
    num_layers: int | None = None

    @classmethod
    def of(cls, extension: Extension | ExtendRecipe | None) -> "Window | None":
        """Returns the window of a model that was, or will be, extended in this way; None for full attention."""
        if extension is None or extension.attention_window is None:
            return None
        return cls(extension.attention_window, extension.num_global_tokens, extension.local_layers)

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, attends within the window."""
        return self.num_layers is None or layer < self.num_layers

    def covers(self, length: int) -> bool:
        """Returns whether all tokens of a row of this length attend to each other."""
        return self.each_side + self.num_global >= length - 1

    def num_attended(self, length: int) -> int:
        """Returns how many tokens a token attends to, if it is not global."""
        return min(length, 2 * self.each_side + 1 + self.num_global)

    @property
    def block_size(self) -> int:
        """The number of queries in a block."""
        return max(MIN_BLOCK, self.each_side // 2)

    @no_type_check  # FlexAttention compiles it
    def sees(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Returns whether the token at index `query` of a row attends to the one at index `key`."""
        return ((query - key).abs() <= self.each_side) | (query < self.num_global) | (key < self.num_global)

    def blocks(self, length: int, device: torch.device) -> list[Block]:
        """Returns blocks that cover the queries of a row in order, with no more keys than needed."""
        num_global, size = min(self.num_global, length), self.block_size
        index = torch.arange(length, device=device)
        first = (slice(0, num_global),) if num_global else ()
        blocks = [Block(one, (slice(0, length),)) for one in first]
        for begin in range(num_global, length, size):
            end = min(length, begin + size)
            near = slice(max(num_global, begin - self.each_side), min(length, end + self.each_side))
            block = Block(slice(begin, end), (*first, near))
            visible = self.sees(index[begin:end, None], block.keys_of(index, 0))
            blocks.append(block._replace(visible=visible))
        return blocks


def stock_global_tokens(auto_class: Any) -> int:
    """Returns how many tokens of a Longformer are global if nothing says which, as in the pipelines of transformers."""
    return 1 if auto_class is AutoModelForSequenceClassification else 0


def set_stock_global_tokens(name: str, config: Any, auto_class: Any) -> list[str]:
    """Sets the global tokens of a released Longformer to the default of its class; returns a note if it had others."""
    before, now = getattr(config, NUM_GLOBAL, None), stock_global_tokens(auto_class)
    if before is None or before == now:
        return []
    setattr(config, NUM_GLOBAL, now)
    return [f"{name} was trained with {counted(before, 'global token')}; here it has {now or 'none'}, as by default"]
