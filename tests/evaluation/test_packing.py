"""The check of packed attention when a run starts on a GPU, here on a CPU with attention that is broken on purpose."""

import re

import pytest
import torch
from transformers import AttentionInterface

from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import check_packed_attention
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import ATTENTION_NAME, packed_attention, use_packed_attention
from tests.support.tiny import World


@pytest.fixture
def objective(world: World) -> MlmObjective:
    model = load_model(str(world.long)).model
    use_packed_attention(model)
    return MlmObjective(model, "bf16").train()


def test_packed_batches_stay_when_they_give_the_same_losses(objective: MlmObjective, frozen: FrozenRows) -> None:
    assert check_packed_attention(objective, frozen) == ()
    assert objective.reads_packed_batches and objective.training


def fails(*args, **kwargs):
    if kwargs.get("packed_rows"):
        raise RuntimeError("no kernel image\nfor this device")
    return packed_attention(*args, **kwargs)


def differs(*args, **kwargs):
    output, _ = packed_attention(*args, **kwargs)
    return (40 * torch.randn_like(output) if kwargs.get("packed_rows") else output), None


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(fails, "fails: no kernel image \\("), (differs, r"gives a loss of [\d.]+, padded rows [\d.]+ \(")],
)
def test_a_model_whose_packed_attention_is_wrong_reads_padded_batches(
    objective: MlmObjective, frozen: FrozenRows, broken, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION_NAME, broken)
    (note,) = check_packed_attention(objective, frozen)
    assert "\n" not in note
    assert re.search(reason, note) and note.endswith("rows are padded instead")
    assert not objective.reads_packed_batches
