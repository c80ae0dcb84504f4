"""Estimated costs of training, compared with what torch counts while training."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMaskedLM

from longmlm.batches.collate import MlmBatch
from longmlm.model import cost, mlm
from longmlm.model.architecture import set_dropout
from longmlm.model.cost import USED_SHARE, Cost, Work, cost_of, document_length, gpu_of, peak_flops
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window, window_of
from tests.support.families import tiny_model

SIZES = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 4, "vocab_size": 700, "pad_token_id": 0}
DEBERTA = {"intermediate_size": 512, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_biased_input": False}
IDS = {"bos_token_id": 1, "eos_token_id": 2}
WIDE = {
    **{name: {"intermediate_size": 512} for name in ("roberta", "mpnet", "roformer", "nomic_bert")},
    "bert": {"intermediate_size": 256},
    "distilbert": {"hidden_dim": 512},
    "modernbert": {"intermediate_size": 192, "cls_token_id": 1, "sep_token_id": 2, **IDS},
    "deberta": DEBERTA,
    "deberta-v2": {"position_buckets": 64, "share_att_key": True, **DEBERTA},
    "eurobert": {"intermediate_size": 512, "mask_token_id": 3, **IDS},
}


def batch_of(length: int, num_rows: int = 1, is_packed: bool = False) -> MlmBatch:
    tokens = torch.randint(5, 290, (num_rows, length), generator=torch.Generator().manual_seed(length))
    selected, labels = torch.arange(0, num_rows * length, 8), tokens.flatten()[::8]
    if is_packed:
        return MlmBatch(tokens.view(1, -1), None, selected, labels, row_lengths=(length,) * num_rows)
    return MlmBatch(tokens, None, selected, labels)


def saved_bytes(objective: MlmObjective, batch: MlmBatch) -> int:
    """Returns the bytes that autograd keeps for the backward pass, without parameters."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept_alive = objective(batch)["mlm"].loss_sum
    assert kept_alive.isfinite()
    return sum(kept.values())


def test_flop_are_those_that_torch_counts(any_kind: tuple[str, int]) -> None:
    more = {"local_attention": 128} if any_kind[0] == "modernbert" else {}  # eager attention computes all pairs
    model = tiny_model(*any_kind, num_positions=64, **more)
    set_dropout(model, 0.0)
    for length in (16, 40):
        batch = batch_of(length, num_rows=50)  # DeBERTa computes its relative positions once for all rows
        expected = cost_of(model, Work(length, len(batch.selected) / batch.input_ids.numel(), is_half=False))
        eager = copy.deepcopy(model).train()
        eager.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter:
            MlmObjective(eager)(batch)["mlm"].loss_sum.backward()
        assert counter.get_total_flops() == pytest.approx(expected.flop_per_token * batch.input_ids.numel(), rel=0.02)


def test_a_model_is_as_it_was_after_its_cost_is_counted() -> None:
    model = tiny_model("roberta", 1, num_positions=64).eval()
    use_window(model, Window(10, 1))
    logits = model(batch_of(64).input_ids).logits
    cost_of(model, Work(60, 0.15, is_half=True))
    assert not model.training and window_of(model) == Window(10, 1)
    assert torch.equal(model(batch_of(64).input_ids).logits, logits)


def test_local_attention_counts_the_tokens_in_its_window() -> None:
    model = tiny_model("modernbert", 3, num_positions=64)
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    assert model.config.sliding_window == 4
    per_token = {length: cost_of(model, Work(length, 0.15, False)).flop_per_token for length in (8, 9, 10, 64)}
    width = model.config.hidden_size
    assert per_token[9] - per_token[8] == pytest.approx(12 * 2 * width)
    assert per_token[10] - per_token[9] == pytest.approx(12 * width)
    assert per_token[64] - per_token[10] == pytest.approx(12 * 54 * width)


def test_a_window_makes_cost_and_memory_linear_in_the_row_length() -> None:
    model = tiny_model("roberta", 1, num_positions=64)
    full = {length: cost_of(model, Work(length, 0.15, False)) for length in (20, 60)}
    use_window(model, Window(10, 1))
    windowed = {length: cost_of(model, Work(length, 0.15, False)) for length in (20, 30, 60)}
    assert windowed[20] == full[20]
    assert windowed[60].flop_per_token == windowed[30].flop_per_token
    fewer = full[60].flop_per_token - windowed[60].flop_per_token
    assert fewer == pytest.approx(12 * 2 * (60 - (10 + 1 + 10 + 1)) * model.config.hidden_size)
    assert windowed[60].row_bytes == pytest.approx(2 * windowed[30].row_bytes, rel=1e-6)


def test_on_a_gpu_blocks_of_a_window_with_dropout_copy_their_keys() -> None:
    model = tiny_model("roberta", 1, num_positions=64)
    use_window(model, Window(10, 1))
    for dropout in (0.0, 0.1):
        set_dropout(model, dropout)
        on_cpu, on_gpu = (cost_of(model, Work(60, 0.15, False, has_gpu=flag)).row_bytes for flag in (False, True))
        assert on_gpu - on_cpu == (2 * 2 * 60 * model.config.hidden_size * 4 * 60 // 128 if dropout else 0)


def test_attention_to_isolated_documents_costs_as_much_as_their_length() -> None:
    assert document_length((0, 0, 0, 0, 0, 0, 3, 1), 512) == round((3 * 96**2 + 192**2) / (3 * 96 + 192))
    assert document_length((0, 0, 0, 0, 0, 0, 3, 1), 100) == round((3 * 96**2 + 192 * 100) / (3 * 96 + 192))
    assert document_length((0, 0), 512) == document_length((), 512) == 512
    whole, isolated = Work(60, 0.15, False), Work(60, 0.15, False, document_length=20)
    packed, padded = tiny_model("roberta", 1, num_positions=64), tiny_model("nomic_bert", 0, num_positions=64)
    width = packed.config.hidden_size
    saved = cost_of(packed, whole).flop_per_token - cost_of(packed, isolated).flop_per_token
    assert saved == pytest.approx(12 * 2 * 40 * width)
    assert cost_of(packed, isolated).row_bytes == cost_of(packed, whole).row_bytes
    assert cost_of(padded, isolated).flop_per_token == cost_of(padded, whole).flop_per_token  # it computes all pairs
    before = cost_of(packed, isolated).flop_per_token
    use_window(packed, Window(5, 1))
    saved = before - cost_of(packed, isolated).flop_per_token
    assert saved == pytest.approx(12 * 2 * (20 - (5 + 1 + 5 + 1)) * width)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("family", [*WIDE, "window", "isolated"])
def test_memory_of_a_row_is_what_autograd_keeps_of_it(family: str, precision: str) -> None:
    """The model is so large that what does not grow with the tokens is negligible. Rows that are not packed are padded.

    The memory of embeddings and head is a formula, which is off by up to a tenth of so small a model's.
    """
    name = {"window": "roberta", "isolated": "modernbert"}.get(family, family)
    config = AutoConfig.for_model(name, **SIZES, **WIDE[name], max_position_embeddings=600)
    model = AutoModelForMaskedLM.from_config(config)
    use_window(model, Window(64, 1) if family == "window" else None)
    use_packed_attention(model)
    objective = MlmObjective(model, precision, isolates_documents=family == "isolated").train()
    for dropout in (0.0, 0.1):
        set_dropout(objective, dropout)
        one, two = (saved_bytes(objective, training_batch(objective, num_rows)) for num_rows in (1, 2))
        predicted = cost_of(objective.model, Work(512, 1 / 8, precision != "no")).row_bytes
        assert predicted == pytest.approx(two - one, rel=0.12)


def training_batch(objective: MlmObjective, num_rows: int) -> MlmBatch:
    """Returns packed rows; or padded ones, of two documents each if they are isolated."""
    if objective.reads_packed_batches:
        return batch_of(512, num_rows, is_packed=True)
    batch = batch_of(512, num_rows)
    if objective.isolates_documents:
        return replace(batch, isolated_lengths=(200, 312) * num_rows)
    mask = torch.ones_like(batch.input_ids, dtype=torch.bool)
    mask[:, -1] = False
    return replace(batch, attention_mask=mask)


def test_recomputed_activations_take_a_fraction_and_give_the_same_gradients(any_kind: tuple[str, int]) -> None:
    """Without gradients, nothing changes."""
    kept, recomputed = (MlmObjective(tiny_model(*any_kind).train()) for _ in range(2))
    checkpoint_activations(recomputed.model)
    batch = batch_of(16, num_rows=4)
    sizes, gradients = [], []
    for objective in (kept, recomputed):
        sizes.append(saved_bytes(objective, batch))
        torch.manual_seed(3)
        objective(batch)["mlm"].loss_sum.backward()
        gradients.append({name: one.grad for name, one in objective.named_parameters() if one.grad is not None})
    assert sizes[1] < sizes[0] / 2
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    with torch.inference_mode():
        logits = [objective.model.eval()(input_ids=batch.input_ids).logits for objective in (kept, recomputed)]
        assert torch.equal(*logits)
    costs = [cost_of(kept.model, Work(16, 1 / 8, is_half=False, is_checkpointed=flag)) for flag in (False, True)]
    assert costs[1].row_bytes < costs[0].row_bytes
    assert costs[1].flop_per_token == costs[0].flop_per_token
    assert costs[0].state_bytes == 16 * kept.model.num_parameters(only_trainable=True)


@pytest.mark.parametrize(
    ("name", "peak", "memory_gib"),
    [
        ("NVIDIA H200", 989e12, 141),
        ("NVIDIA H100 PCIe", 756e12, 80),
        ("NVIDIA A100-SXM4-40GB", 312e12, 40),
        ("A100", 312e12, 80),
        ("a100 40gb", 312e12, 40),
        ("h100-pcie", 756e12, 80),
        ("Tesla V100-SXM2-32GB", 125e12, 32),
        ("V100", 112e12, 16),
        ("NVIDIA A10", None, None),
        ("GTX 1080 Ti", None, None),
        ("NVIDIA RTX A4000", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("K80", None, None),
    ],
)
def test_peak_and_memory_are_those_of_the_gpu_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None, memory_gib: int | None
) -> None:
    for is_available in (True, False):
        monkeypatch.setattr(cost.torch.cuda, "is_available", lambda is_available=is_available: is_available)
        monkeypatch.setattr(cost.torch.cuda, "get_device_name", lambda: name)
        assert peak_flops() == (peak if is_available else None)
    gpu = gpu_of(name)
    assert (gpu and gpu.memory_gib) == memory_gib


@pytest.mark.parametrize("free_bytes", [10**9, 2 * 10**9, 24 * 10**9])
@pytest.mark.parametrize(("row_bytes", "row_logit_bytes"), [(10**8, 0), (10**8, 3 * 10**7), (9 * 10**8, 8 * 10**8)])
def test_the_largest_micro_batch_fits_and_one_row_more_does_not(
    free_bytes: int, row_bytes: int, row_logit_bytes: int
) -> None:
    found = Cost(1.0, 1, row_bytes, 1, 1, row_logit_bytes)
    fitting = found.fitting_rows(free_bytes, 10**8)
    room = int(USED_SHARE * free_bytes) - 10**8
    assert found.batch_bytes(fitting) <= room < found.batch_bytes(fitting + 1)
    held_at_once = found.batch_bytes(10**6) - 10**6 * (row_bytes - row_logit_bytes)
    assert held_at_once == (12 * mlm.MAX_LOGITS if row_logit_bytes else 0)


def test_zero_stage_3_holds_all_logits() -> None:
    model = tiny_model("roberta", 1)
    parts, whole = (cost_of(model, Work(16, 0.5, False, has_all_logits=one)) for one in (False, True))
    assert parts.row_bytes == whole.row_bytes
    assert (parts.row_logit_bytes, whole.row_logit_bytes) == (16 * 12 * 0.5 * model.config.vocab_size, 0)
