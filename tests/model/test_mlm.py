"""The MLM objective: the stock model's losses at the selected positions, and gradients that add up."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row
from longmlm.model import mlm
from longmlm.model.architecture import set_dropout
from longmlm.model.mlm import MlmObjective
from longmlm.settings.pretrain import ComputePrecision
from tests.support.families import tiny_model
from tests.support.logit_tensors import LogitTensors
from tests.support.tiny import NUM_POSITIONS

FULL = [NUM_POSITIONS] * 6
PADDED = [16, 3, 9, 16, 1, 12]
ROBERTA = ("roberta", 1)
CONFIG_DROPOUTS = {
    "distilbert": ("dropout", "attention_dropout"),
    "modernbert": ("attention_dropout", "mlp_dropout", "embedding_dropout"),
    "eurobert": ("attention_dropout",),
}


def masked_rows(lengths: list[int], seed: int = 0) -> list[MaskedRow]:
    """Returns rows of random tokens of which about a third is selected, one at least."""
    generator = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        tokens = generator.integers(10, 290, length)
        selected = np.sort(generator.choice(length, max(1, length // 3), replace=False))
        row = Row(tokens, np.array([1]), np.array([0]))
        rows.append(MaskedRow(row, selected, generator.integers(10, 290, len(selected))))
    return rows


def batch_of(model: PreTrainedModel, lengths: list[int]) -> MlmBatch:
    return collate(masked_rows(lengths), model.config.pad_token_id)


def gradients(model: PreTrainedModel, at_least: int = 15) -> dict[str, torch.Tensor]:
    """Returns the gradients of all parameters that have one; of most, it is not zero."""
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert sum(int(one.abs().max() > 1e-4) for one in found.values()) > at_least
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert torch.allclose(found[name], one, rtol=1e-3, atol=atol + 1e-5 * float(one.abs().max())), name


@pytest.mark.parametrize("lengths", [FULL, PADDED], ids=["full", "padded"])
def test_losses_and_gradients_are_those_of_the_stock_model_with_labels(any_kind, lengths: list[int]) -> None:
    """Logits at the selected positions are those of the whole model, of one row at a time and without padding."""
    model = tiny_model(*any_kind)
    batch, twin = batch_of(model, lengths), copy.deepcopy(model)
    labels = torch.full_like(batch.input_ids, -100)
    labels.view(-1)[batch.selected] = batch.labels
    assert (batch.attention_mask is None) == (lengths == FULL)
    mask = torch.ones_like(labels) if batch.attention_mask is None else batch.attention_mask.long()
    expected = twin(input_ids=batch.input_ids, attention_mask=mask, labels=labels).loss
    expected.backward()
    objective = MlmObjective(model)
    output, step = objective.predict(batch), objective(batch)["mlm"]
    (step.loss_sum / len(batch.labels)).backward()
    assert step.loss_sum.item() == pytest.approx(expected.item() * len(batch.labels), rel=1e-5)
    assert_close(gradients(model), gradients(twin))
    with torch.no_grad():
        rows = [twin(ids[:length].unsqueeze(0)).logits[0] for ids, length in zip(batch.input_ids, lengths, strict=True)]
        whole = torch.cat([torch.cat([row, row.new_zeros(max(lengths) - len(row), row.shape[1])]) for row in rows])
        logits, alone = objective.logits(batch), whole[batch.selected]
    assert torch.allclose(logits, alone, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, alone.roll(1, dims=0), rtol=1e-2, atol=1e-2)
    losses = cross_entropy(alone.double(), batch.labels, reduction="none")
    assert torch.allclose(output.losses.double(), losses, atol=1e-3)
    assert torch.equal(output.is_correct, alone.argmax(1) == batch.labels)
    assert int(step.num_correct) == int(output.is_correct.sum())


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_step_is_that_of_the_stock_head_on_the_selected_hidden_states_bit_for_bit(
    any_kind: tuple[str, int], precision: ComputePrecision
) -> None:
    model = tiny_model(*any_kind)
    batch, twin = batch_of(model, PADDED), MlmObjective(copy.deepcopy(model), precision)
    half = torch.float16 if precision == "fp16" else torch.bfloat16
    with torch.autocast("cpu", half, enabled=precision != "no"):
        hidden = twin.model.base_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())[0]
        logits = twin.parts.head(hidden.flatten(0, 1)[batch.selected]).float()
    expected = cross_entropy(logits, batch.labels, reduction="none")
    expected.sum().backward()
    objective = MlmObjective(model, precision)
    output, step = objective.predict(batch), objective(batch)["mlm"]
    step.loss_sum.backward()
    assert torch.equal(output.losses, expected) and torch.equal(step.loss_sum, expected.sum())
    stock, own = gradients(twin.model), gradients(model)
    assert stock.keys() == own.keys() and all(torch.equal(stock[name], own[name]) for name in stock)


@torch.no_grad()
def test_padding_is_not_attended_to_and_every_other_token_is(any_kind: tuple[str, int]) -> None:
    objective = MlmObjective(tiny_model(*any_kind))
    config = objective.model.config
    padded, full = (batch_of(objective.model, lengths) for lengths in (PADDED, FULL))
    logits, ids = objective.logits(padded), padded.input_ids.clone()
    ids[~padded.attention_mask] = 77 if config.model_type == "bert" else config.pad_token_id
    assert torch.equal(logits, objective.logits(replace(padded, input_ids=ids)))
    assert not torch.allclose(logits, objective.logits(replace(padded, attention_mask=None)), atol=1e-2)
    masked = replace(full, attention_mask=torch.ones_like(full.input_ids, dtype=torch.bool))
    assert torch.allclose(objective.logits(full), objective.logits(masked), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [[1] * 6, [2, 3, 1]])
@pytest.mark.parametrize("lengths", [FULL, PADDED], ids=["full", "padded"])
def test_gradients_of_micro_batches_add_up_to_that_of_one_batch(lengths: list[int], sizes: list[int]) -> None:
    """The loss is no mean of means."""
    whole, parts = MlmObjective(tiny_model(*ROBERTA)), MlmObjective(tiny_model(*ROBERTA))
    for objective in (whole, parts):
        set_dropout(objective.train(), 0.0)
    rows, pad = masked_rows(lengths), whole.model.config.pad_token_id
    count = sum(len(row.labels) for row in rows)
    (whole(collate(rows, pad))["mlm"].loss_sum / count).backward()
    begin, means = 0, []
    for size in sizes:
        batch = collate(rows[begin : begin + size], pad)
        loss_sum = parts(batch)["mlm"].loss_sum
        (loss_sum / count).backward()
        means.append((len(batch.labels), loss_sum.item() / len(batch.labels)))
        begin += size
    assert_close(gradients(parts.model), gradients(whole.model))
    mean = sum(number * one for number, one in means) / count
    assert (lengths == FULL and sizes[0] == 1) or abs(mean - sum(one for _, one in means) / len(means)) > 1e-3


@torch.no_grad()
def test_dropout_is_set_everywhere_but_in_the_config(any_kind: tuple[str, int]) -> None:
    model = tiny_model(*any_kind)
    batch = batch_of(model, PADDED)
    expected, dropped = MlmObjective(model).logits(batch), MlmObjective(model.train())
    assert not torch.allclose(dropped.logits(batch), expected, atol=1e-3)
    set_dropout(model, 0.0)
    assert torch.allclose(dropped.logits(batch), expected, rtol=1e-4, atol=1e-4)
    said = CONFIG_DROPOUTS.get(any_kind[0], ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    assert {getattr(model.config, name) for name in said} == {0.1}


@torch.no_grad()
def test_dropout_is_set_where_the_config_has_none() -> None:
    model = tiny_model("modernbert", 3, attention_dropout=0.0, mlp_dropout=0.0, embedding_dropout=0.0)
    objective, batch = MlmObjective(model), batch_of(model, FULL)
    expected = objective.logits(batch)
    model.train()
    assert torch.equal(objective.logits(batch), expected)
    set_dropout(model, 0.2)
    dropped = [one for one in model.modules() if isinstance(one, torch.nn.Dropout)]
    assert len(dropped) == 5 and {one.p for one in dropped} == {0.2}  # embeddings, two per layer
    assert {layer.attn.attention_dropout for layer in model.model.layers} == {0.2}
    assert not torch.allclose(objective.logits(batch), expected, atol=1e-3)


def test_attention_of_deberta_stays_in_fp32_under_autocast() -> None:
    """Transformers' own fails: it fills masked bf16 scores with the minimum of fp32."""
    batch = collate(masked_rows(PADDED), 0)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="overflow"):
        tiny_model("deberta", 0)(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
    logits = [MlmObjective(tiny_model("deberta", 0), precision).logits(batch) for precision in ("no", "bf16")]
    assert 0 < (logits[1] - logits[0]).abs().mean() < 0.05 * logits[0].std()


def test_logits_are_computed_for_some_positions_at_a_time(any_kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is saved for the backward pass. A partitioned head runs once.

    In ZeRO stage 3, ranks with more selected tokens than others must not call it more often.
    """
    model = tiny_model(*any_kind)
    batch, twin, objective = batch_of(model, PADDED), MlmObjective(copy.deepcopy(model)), MlmObjective(model)
    expected = twin(batch)["mlm"]
    expected.loss_sum.backward()
    monkeypatch.setattr(mlm, "MAX_LOGITS", 3 * model.config.vocab_size + 1)
    saved = []
    with LogitTensors(model) as sizes:
        with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one.shape) or one, lambda one: one):
            found = objective(batch)["mlm"]
        found.loss_sum.backward()
    assert max(sizes.positions) == 3 < len(batch.labels)
    assert not [shape for shape in saved if len(shape) > 1 and shape[-1] == sizes.vocab_size and shape[0] <= 3]
    assert torch.allclose(found.loss_sum, expected.loss_sum, rtol=1e-6)
    assert int(found.num_correct) == int(expected.num_correct)
    assert_close(gradients(model), gradients(twin.model), atol=1e-5)
    for objective.has_full_parameters, num_positions in ((True, 3), (False, len(batch.labels))):
        with LogitTensors(model) as sizes, torch.inference_mode():
            assert torch.allclose(objective.predict(batch).losses.sum(), expected.loss_sum, rtol=1e-6)
        assert max(sizes.positions) == num_positions
