"""The table of the largest micro-batch in 24 GB: the cost model behind it, and the page that shows it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from steps import BASE, Shape, random_batch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.micro_batch_memory import (
    CHECKED,
    LENGTHS,
    MODES,
    SAVED_BYTES_PER_LOGIT,
    SELECTED,
    Mode,
    measured_bytes,
    predicted_bytes,
    table_line,
)
from longmlm.model import mlm, packed_attention
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from tests.support.training import ROOT


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_cost_model_gives_what_autograd_saves(mode: Mode) -> None:
    assert predicted_bytes(CHECKED, mode) == pytest.approx(measured_bytes(CHECKED, mode), rel=0.1)


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """The published figures of the benchmark."""
    results = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    return next(one for one in results if one["name"] == "micro-batch in 24 GB")


@pytest.fixture
def one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in one chunk: no memory is allocated for shapes, and many chunks take long."""
    monkeypatch.setattr(packed_attention, "MAX_CHUNK", 2**60)


def saved_without_weights(shape: Shape, *numbers_of_rows: int) -> list[int]:
    """Returns the bytes that autograd would save in a forward pass in bf16, for each number of rows.

    Attention has no dropout, because its seed would be read; it saves query, key and value with and without.
    """
    with FakeTensorMode():
        model = shape.roberta()
        for layer in model.roberta.encoder.layer:
            layer.attention.self.dropout.p = 0.0
        use_packed_attention(model)
        objective = MlmObjective(model, "bf16").train()
        found = []
        for num_rows in numbers_of_rows:
            batch = random_batch(objective, num_rows, shape.row_length, round(SELECTED * num_rows * shape.row_length))
            found.append(saved_storage_bytes(model, lambda batch=batch: objective(batch)["mlm"].loss_sum))
    return found


def saved_storage_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Returns what `saved_bytes` of the benchmark does, for storages that have no address."""
    owned = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            saved[storage._cdata] = storage  # kept alive, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in saved.values())


def test_logits_above_the_limit_are_recomputed_and_not_saved(one_chunk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(BASE, row_length=8192)
    num_logits = round(SELECTED * 2 * shape.row_length) * shape.vocabulary
    assert num_logits > mlm.MAX_LOGITS
    [in_parts] = saved_without_weights(shape, 2)
    monkeypatch.setattr(mlm, "MAX_LOGITS", num_logits)
    [at_once] = saved_without_weights(shape, 2)
    assert at_once - in_parts >= SAVED_BYTES_PER_LOGIT * num_logits


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_published_table_is_that_of_the_cost_model(mode: Mode, published: dict[str, Any]) -> None:
    """The first length stands for the others."""
    line = table_line(mode.name, BASE, mode, lengths=LENGTHS[:1]).removesuffix(" |")
    assert any(one.startswith(line) for one in published["tables"])
