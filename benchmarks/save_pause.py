"""How long training waits for a checkpoint of RoBERTa-base's size, compared with Accelerate's `save_state`.

longmlm copies weights and AdamW's moments in memory, and writes them in the background. `save_state` writes them while
training waits; it neither hashes its files nor waits until they are on the disk. Set TMPDIR to measure another disk.

    python benchmarks/save_pause.py [--quick]
"""

import tempfile
from collections.abc import Callable
from functools import partial

import torch
from accelerate import Accelerator
from paired import Comparison, Way, run, seconds
from steps import BASE, SMALL, Shape
from torch import nn

from longmlm.model.mlm import MlmObjective
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot

RECIPE = PretrainRecipe(num_steps=1, batch_tokens=1, learning_rate=1e-9)


def ours(shape: Shape) -> Callable[[], float]:
    """Returns a function that does what training waits for: copying a model and AdamW's moments, as after a step."""
    model = shape.roberta()
    backend = PlainBackend.wrap(Accelerator(cpu=True), MlmObjective(model), RECIPE)
    _give_gradients(model)
    backend.step(RECIPE.learning_rate)

    def work() -> float:
        snapshot = take_snapshot(backend, backend.accelerator)
        assert snapshot is not None
        return 0

    return work


def theirs(shape: Shape) -> Callable[[], float]:
    """Returns a function that saves the same with Accelerate."""
    accelerator, model = Accelerator(cpu=True), shape.roberta()
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True))
    _give_gradients(prepared)
    optimizer.step()
    folder = tempfile.mkdtemp()

    def work() -> float:
        accelerator.save_state(folder)
        return 0

    return work


def _give_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for a model of this shape."""
    megabytes = 12 * shape.without_weights().num_parameters() / 1e6
    label = f"{shape.name} with AdamW's moments, {megabytes:,.0f} MB"
    own, peer = (
        Way("longmlm, copy in memory", partial(ours, shape), seconds),
        Way("Accelerate, save_state", partial(theirs, shape), seconds),
    )
    return Comparison(label, own, peer, aim=5, unit="s")


if __name__ == "__main__":
    run("pause of a save", __doc__ or "", [comparison(BASE)], [comparison(SMALL)])
