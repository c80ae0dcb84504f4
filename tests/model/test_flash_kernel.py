"""Whether the flash kernel of a GPU can be used, as far as it is known without one."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.backends.cuda import SDPAParams
from torch.nested._internal.sdpa import _can_use_flash_sdpa_jagged, _is_safe_to_get_storage_as_tensor
from transformers import AutoConfig, AutoModelForMaskedLM

from longmlm.batches.collate import MlmBatch
from longmlm.model import packed_attention as module
from longmlm.model.architecture import set_dropout
from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention

LENGTH, HEAD_SIZE, ROW_LENGTHS = 24, 64, (16, 3, 9)


def recording(found: list[dict[str, Any]], attend: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's attention that notes the arguments of each call."""

    def recorded(query, key, value, **options):
        found.append({"states": (query, key, value), **options})
        return attend(query, key, value, **options)

    return recorded


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call of torch's attention."""
    functional, found = torch.nn.functional, []
    attend = recording(found, functional.scaled_dot_product_attention)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    return found


@pytest.fixture
def jagged_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call of torch's attention on jagged tensors, which is not computed.

    A model on the meta device takes the same path as on a GPU. Autocast has no meta device, so weights are bf16.
    """
    found = []
    attend = recording(found, lambda query, *_, **__: query)
    monkeypatch.setattr(module, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(MlmObjective, "autocast", lambda *_: nullcontext())
    return found


def objective_of(family: str, head_size: int = HEAD_SIZE) -> MlmObjective:
    width = 2 * head_size
    sizes = {"hidden_size": width, "dim": width, "embedding_size": width}
    heads = {"num_attention_heads": 2, "n_heads": 2}
    layers = {"num_hidden_layers": 1, "n_layers": 1, "intermediate_size": width, "hidden_dim": width}
    own = AutoConfig.for_model(family).to_dict()
    config = AutoConfig.for_model(family, **{k: v for k, v in (sizes | heads | layers).items() if k in own})
    return MlmObjective(AutoModelForMaskedLM.from_config(config), "bf16").train()


def batch_of(mask: torch.Tensor | None) -> MlmBatch:
    input_ids = torch.full((2, LENGTH), 100)
    return MlmBatch(input_ids, mask, torch.arange(3), input_ids[0, :3])


def train_on_packed_rows(family: str, head_size: int, dropout: float) -> None:
    with torch.device("meta"):
        objective = objective_of(family, head_size).bfloat16()
        input_ids = torch.full((1, sum(ROW_LENGTHS)), 100)
        batch = MlmBatch(input_ids, None, torch.arange(3), input_ids[0, :3], row_lengths=ROW_LENGTHS)
    use_packed_attention(objective.model)
    set_dropout(objective, dropout)
    objective(batch)["mlm"].loss_sum.backward()


def can_use_flash(states: tuple[torch.Tensor, ...], mask: torch.Tensor | None, dropout: float) -> bool:
    """Returns torch's answer for jagged tensors of these shapes; the device is not asked for."""
    return _can_use_flash_sdpa_jagged(SDPAParams(*states, mask, dropout, False, False))


@pytest.mark.parametrize(
    ("family", "head_size", "dropout"), [*((family, 64, 0.1) for family in LEARNED_FAMILIES), ("roberta", 32, 0.0)]
)
def test_packed_rows_meet_the_conditions_of_the_flash_kernel(jagged_calls, family, head_size, dropout):
    train_on_packed_rows(family, head_size, dropout)
    assert len(jagged_calls) == 1
    call = jagged_calls[0]
    assert can_use_flash(call["states"], call.get("attn_mask"), dropout)
    assert call.get("attn_mask") is None and call["dropout_p"] == dropout
    assert not call.get("is_causal") and not call.get("enable_gqa")
    for states in call["states"]:
        assert states.is_nested and states.layout == torch.jagged and states.requires_grad
        assert states.dtype == torch.bfloat16
        assert (states.shape[0], *states.shape[1::2]) == (len(ROW_LENGTHS), 2, head_size)
        assert _is_safe_to_get_storage_as_tensor(states.transpose(1, 2))  # the kernel reads it without a copy


def test_the_flash_kernel_refuses_heads_of_a_size_that_is_not_a_multiple_of_eight(jagged_calls):
    train_on_packed_rows("roberta", 12, 0.1)
    assert len(jagged_calls) == 1
    assert not can_use_flash(jagged_calls[0]["states"], None, 0.1)


@pytest.mark.parametrize("family", LEARNED_FAMILIES)
def test_full_rows_meet_the_conditions_of_the_flash_kernel(calls, family):
    """Those of torch: half precision, no mask, heads of at most 256 in multiples of 8, adjacent in memory."""
    objective_of(family)(batch_of(None))["mlm"].loss_sum.backward()
    assert len(calls) == 1
    assert calls[0].get("attn_mask") is None
    for states in calls[0]["states"]:
        assert states.dtype == torch.bfloat16
        assert states.shape == (2, 2, LENGTH, HEAD_SIZE)
        assert states.shape[-1] <= 256 and states.shape[-1] % 8 == 0 and states.stride(-1) == 1
    assert not calls[0].get("is_causal") and not calls[0].get("enable_gqa")


def test_padded_rows_have_a_mask_that_only_the_memory_efficient_kernel_takes(calls):
    mask = torch.arange(LENGTH).expand(2, LENGTH) < LENGTH - 4
    objective_of("roberta")(batch_of(mask))
    assert len(calls) == 1
    assert calls[0]["attn_mask"].dtype == torch.bool
    assert calls[0]["attn_mask"].expand(2, 2, LENGTH, LENGTH).sum() == 2 * 2 * LENGTH * (LENGTH - 4)
