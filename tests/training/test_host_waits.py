"""How often a training step waits for its device: the places where Python reads a tensor's values."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from longmlm.batches.collate import MlmBatch
from longmlm.training import loop
from longmlm.training.backend import PlainBackend
from tests.support.training import training_lines, with_recipe, with_runtime

READS = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "equal"}
READING_OPERATORS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")


class PythonReads(TorchFunctionMode):
    """Adds the name of each function that returns a tensor's values to Python."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in READS or (func.__name__ == "to" and "cpu" in args[1:]):
            self.events.append(func.__name__)
        return func(*args, **(kwargs or {}))


class OperatorReads(TorchDispatchMode):
    """Adds the name of each operator whose result depends on values that the host has to read, as in indexing."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in READING_OPERATORS or (
            name == "index" and any(one.dtype == torch.bool for one in args[1] if one is not None)
        ):
            self.events.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def recorded(events: list[str]) -> Iterator[None]:
    with PythonReads(events), OperatorReads(events):
        yield


@pytest.fixture
def events(monkeypatch) -> list[list[str]]:
    """For each step: its reads, forward and backward passes and its update, in their order."""
    steps: list[list[str]] = []
    one_update, num_tokens = loop.one_update, MlmBatch.num_tokens

    def observed(task, run, batches, state):
        events: list[str] = []
        steps.append(events)
        counts = {id(batch): num_tokens.fget(batch) for batch in batches}  # a batch is counted before it is moved
        with monkeypatch.context() as patched:
            patched.setattr(MlmBatch, "num_tokens", property(lambda self: counts[id(self)]))
            patched.setattr(MlmBatch, "to", lambda self, _: self)
            with recorded(events):
                return one_update(task, run, batches, state)

    def marked(name: str) -> None:
        original = getattr(PlainBackend, name)

        def method(self, *args):
            steps[-1].append(name)
            return original(self, *args)

        monkeypatch.setattr(PlainBackend, name, method)

    monkeypatch.setattr(loop, "one_update", observed)
    for name in ("forward", "backward", "step"):
        marked(name)
    return steps


def test_a_step_reads_its_figures_once_after_the_update(settings, train, events):
    settings = with_runtime(with_recipe(settings, num_steps=3, dropout=0.0), rows_per_micro_batch=4)
    run = train(settings)
    assert len(events) == 3
    for step in events:
        passes, end = step[:-2], step[-2:]
        assert passes == ["forward", "backward"] * (len(passes) // 2) and len(passes) >= 4
        assert end == ["step", "tolist"]
    assert all(line.padding_percent == 0 for line in training_lines(run))


@pytest.mark.parametrize("read", ["float(loss)", "bool(loss > 0)", "loss.cpu()", "x[x > 0]", "x.nonzero()"])
def test_reads_are_noticed(read):
    events: list[str] = []
    x = torch.arange(4.0)
    with recorded(events):
        eval(read, {"loss": x.sum(), "x": x})
    assert events
