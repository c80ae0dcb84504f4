"""Records how large the tensors of logits are that a computation creates."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LogitTensors(TorchDispatchMode):
    """Records of how many positions each tensor holds logits in memory: tensors with a dimension of the vocabulary.

    The model's weights, as they are or transposed, are not counted.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.vocab_size = model.get_input_embeddings().num_embeddings
        shapes = {tuple(parameter.shape) for parameter in model.parameters()}
        self.weights = shapes | {shape[::-1] for shape in shapes}
        self.positions: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in (one for one in tree_iter(output) if isinstance(one, torch.Tensor)):
            if self.vocab_size in tensor.shape and tuple(tensor.shape) not in self.weights:
                stored = tensor.untyped_storage().nbytes() // tensor.element_size()  # fewer if it is expanded
                self.positions.add(min(tensor.numel(), stored) // self.vocab_size)
        return output
