"""The MLM objective: the stock model's losses at the selected positions, and gradients that add up."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row
from longmlm.model import mlm
from longmlm.model.architecture import set_dropout
from longmlm.model.mlm import MlmObjective
from longmlm.settings.pretrain import ComputePrecision
from tests.support.families import tiny_model
from tests.support.tiny import NUM_POSITIONS

FULL = [NUM_POSITIONS] * 6
PADDED = [16, 3, 9, 16, 1, 12]
STOCK_HEADS = {
    "roberta": lambda model, hidden: model.lm_head(hidden),
    **dict.fromkeys(("bert", "deberta-v2", "roformer", "nomic_bert"), lambda model, hidden: model.cls(hidden)),
    "deberta": lambda model, hidden: model.lm_predictions(hidden, model.get_input_embeddings()),
    "modernbert": lambda model, hidden: model.decoder(model.head(hidden)),
    "eurobert": lambda model, hidden: model.lm_head(hidden),
    "albert": lambda model, hidden: model.predictions(hidden),
    "electra": lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden)),
    "distilbert": lambda model, hidden: model.vocab_projector(
        model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    ),
}


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


@pytest.fixture
def model(any_kind: tuple[str, int]) -> PreTrainedModel:
    return tiny_model(*any_kind)


@pytest.fixture(params=[FULL, PADDED], ids=["full", "padded"])
def batch(request: pytest.FixtureRequest, model: PreTrainedModel) -> MlmBatch:
    return collate(masked_rows(request.param), model.config.pad_token_id)


def selected_logits(model: PreTrainedModel, batch: MlmBatch) -> torch.Tensor:
    return MlmObjective(model).logits(batch)


def full_logits(model: PreTrainedModel, batch: MlmBatch) -> torch.Tensor:
    """Returns the whole model's logits at the selected positions, one row at a time and without padding."""
    length = batch.input_ids.shape[1]
    lengths = [length] * len(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.sum(1).tolist()
    found = {}
    for number, (tokens, own_length) in enumerate(zip(batch.input_ids, lengths, strict=True)):
        logits = model(input_ids=tokens[:own_length].unsqueeze(0)).logits[0]
        found |= {number * length + position: logits[position] for position in range(own_length)}
    return torch.stack([found[index] for index in batch.selected.tolist()])


@torch.no_grad()
def test_logits_at_selected_positions_are_those_of_the_whole_model(model: PreTrainedModel, batch: MlmBatch) -> None:
    logits, expected = selected_logits(model, batch), full_logits(model, batch)
    assert logits.shape == (len(batch.labels), model.config.vocab_size)
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, expected.roll(1, dims=0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_step_is_that_of_the_stock_head_on_the_selected_hidden_states_bit_for_bit(
    model: PreTrainedModel, batch: MlmBatch, precision: ComputePrecision
) -> None:
    family, twin = model.config.model_type, MlmObjective(copy.deepcopy(model), precision).model
    with torch.autocast("cpu", torch.float16 if precision == "fp16" else torch.bfloat16, enabled=precision != "no"):
        mask = None if batch.attention_mask is None else batch.attention_mask.long()
        hidden = twin.base_model(input_ids=batch.input_ids, attention_mask=mask).last_hidden_state
        logits = STOCK_HEADS.get(family, STOCK_HEADS["roberta"])(twin, hidden.flatten(0, 1)[batch.selected]).float()
    expected = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    objective = MlmObjective(model, precision)
    output, step = objective.predict(batch), objective(batch)["mlm"]
    assert torch.equal(output.losses, expected)
    assert torch.equal(output.is_correct, logits.argmax(-1) == batch.labels)
    assert torch.equal(step.loss_sum, expected.sum())
    assert int(step.num_correct) == int(output.is_correct.sum())
    expected.sum().backward()
    step.loss_sum.backward()
    gradients = [[parameter.grad for parameter in model.parameters()] for model in (twin, model)]
    assert sum(gradient is not None for gradient in gradients[0]) > 15
    for stock, own in zip(*gradients, strict=True):
        assert (stock is None and own is None) or torch.equal(stock, own)


def test_loss_and_gradients_are_those_of_the_stock_model_with_labels(model: PreTrainedModel, batch: MlmBatch) -> None:
    labels = torch.full_like(batch.input_ids, -100)
    labels.view(-1)[batch.selected] = batch.labels
    mask = torch.ones_like(labels) if batch.attention_mask is None else batch.attention_mask.long()
    twin = copy.deepcopy(model)
    expected = twin(input_ids=batch.input_ids, attention_mask=mask, labels=labels).loss
    expected.backward()
    loss = MlmObjective(model)(batch)["mlm"].loss_sum / len(batch.labels)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    compared = 0
    for (name, stock), own in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (stock.grad is None) == (own.grad is None), name
        if own.grad is not None:
            assert torch.allclose(stock.grad, own.grad, rtol=1e-3, atol=1e-5), name
            compared += int(own.grad.abs().max() > 1e-4)
    assert compared > 15


@torch.no_grad()
def test_losses_and_correctness_are_those_computed_by_hand(model: PreTrainedModel, batch: MlmBatch) -> None:
    expected = full_logits(model, batch).double()
    best = expected.argmax(1)
    batch.labels[::2] = best[::2]
    output, step = MlmObjective(model).predict(batch), MlmObjective(model)(batch)["mlm"]
    losses = [
        math.log(sum(math.exp(logit - row.max()) for logit in row)) + float(row.max() - row[label])
        for row, label in zip(expected, batch.labels.tolist(), strict=True)
    ]
    assert output.losses.tolist() == pytest.approx(losses, abs=1e-3)
    assert output.is_correct.tolist() == (best == batch.labels).tolist()
    assert 0 < int(step.num_correct) < len(batch.labels)
    assert float(step.loss_sum) == pytest.approx(sum(losses), abs=1e-2)


@torch.no_grad()
def test_without_an_attention_mask_every_token_is_attended_to(model: PreTrainedModel) -> None:
    batch = collate(masked_rows(FULL), model.config.pad_token_id)
    assert batch.attention_mask is None
    ones = torch.ones_like(batch.input_ids, dtype=torch.bool)
    seen = MlmBatch(batch.input_ids, ones, batch.selected, batch.labels)
    assert torch.allclose(selected_logits(model, batch), selected_logits(model, seen), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_padding_is_not_attended_to(model: PreTrainedModel) -> None:
    batch = collate(masked_rows(PADDED), model.config.pad_token_id)
    assert batch.attention_mask is not None
    other_ids = batch.input_ids.clone()
    other_ids[~batch.attention_mask] = 77 if model.config.model_type == "bert" else model.config.pad_token_id
    other = MlmBatch(other_ids, batch.attention_mask, batch.selected, batch.labels)
    assert torch.equal(selected_logits(model, batch), selected_logits(model, other))
    unmasked = MlmBatch(batch.input_ids, None, batch.selected, batch.labels)
    assert not torch.allclose(selected_logits(model, batch), selected_logits(model, unmasked), atol=1e-2)


@pytest.mark.parametrize("sizes", [[1] * 6, [4, 2], [2, 3, 1]])
@pytest.mark.parametrize("lengths", [FULL, PADDED], ids=["full", "padded"])
def test_gradients_of_micro_batches_add_up_to_that_of_one_batch(
    any_kind: tuple[str, int], lengths: list[int], sizes: list[int]
) -> None:
    whole, parts = MlmObjective(tiny_model(*any_kind)), MlmObjective(tiny_model(*any_kind))
    for objective in (whole, parts):
        set_dropout(objective.train(), 0.0)
    rows, pad = masked_rows(lengths), whole.model.config.pad_token_id
    count = sum(len(row.labels) for row in rows)
    (whole(collate(rows, pad))["mlm"].loss_sum / count).backward()
    counts, begin = [], 0
    for size in sizes:
        batch = collate(rows[begin : begin + size], pad)
        (parts(batch)["mlm"].loss_sum / count).backward()
        counts.append(len(batch.labels))
        begin += size
    assert (sum(counts), begin) == (count, len(rows))
    compared = 0
    for (name, one), (_, other) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-6 + 1e-5 * float(one.grad.abs().max())), name
            compared += int(one.grad.abs().max() > 1e-4)
    assert compared > 15


def test_the_loss_is_not_a_mean_of_means(any_kind: tuple[str, int]) -> None:
    rows = masked_rows(PADDED)
    assert len({len(row.labels) for row in rows}) > 2
    objective = MlmObjective(tiny_model(*any_kind))
    with torch.no_grad():
        sums = [float(objective(collate([row], objective.model.config.pad_token_id))["mlm"].loss_sum) for row in rows]
    counts = [len(row.labels) for row in rows]
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    assert abs(sum(sums) / sum(counts) - sum(means) / len(means)) > 1e-3


def test_dropout_is_set_everywhere_but_in_the_config(model: PreTrainedModel) -> None:
    batch = collate(masked_rows(PADDED), model.config.pad_token_id)
    expected = selected_logits(model, batch)
    dropped = copy.deepcopy(model).train()
    assert not torch.allclose(selected_logits(dropped, batch), expected, atol=1e-3)
    set_dropout(dropped, 0.0)
    assert torch.allclose(selected_logits(dropped, batch), expected, rtol=1e-4, atol=1e-4)
    said = CONFIG_DROPOUTS.get(model.config.model_type, ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    assert {getattr(dropped.config, name) for name in said} == {0.1}


@torch.no_grad()
def test_dropout_is_set_where_the_config_has_none() -> None:
    model = tiny_model("modernbert", 3, attention_dropout=0.0, mlp_dropout=0.0, embedding_dropout=0.0)
    batch = collate(masked_rows(FULL), model.config.pad_token_id)
    expected = selected_logits(model, batch)
    assert torch.equal(selected_logits(model.train(), batch), expected)
    set_dropout(model, 0.2)
    dropped = [one for one in model.modules() if isinstance(one, torch.nn.Dropout)]
    assert len(dropped) == 5 and {one.p for one in dropped} == {0.2}  # embeddings, two per layer
    assert {layer.attn.attention_dropout for layer in model.model.layers} == {0.2}
    assert not torch.allclose(selected_logits(model, batch), expected, atol=1e-3)


def test_attention_of_deberta_stays_in_fp32_under_autocast() -> None:
    """Transformers' own fails: it fills masked bf16 scores with the minimum of fp32."""
    batch = collate(masked_rows(PADDED), 0)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="overflow"):
        tiny_model("deberta", 0)(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
    logits = [MlmObjective(tiny_model("deberta", 0), precision).logits(batch) for precision in ("no", "bf16")]
    assert 0 < (logits[1] - logits[0]).abs().mean() < 0.05 * logits[0].std()


class LogitSizes(TorchDispatchMode):
    """Records the number of rows of each tensor that is as wide as the vocabulary, and of those saved for backward."""

    def __init__(self, objective: MlmObjective) -> None:
        super().__init__()
        self.vocab_size, self.weight_rows = objective.parts.decoder_weight.shape
        self.rows, self.saved_rows = [0], [0]
        self.saved = torch.autograd.graph.saved_tensors_hooks(self.save, lambda tensor: tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count(result, self.rows)
        return result

    def count(self, value: object, rows: list[int]) -> None:
        if isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[-1] == self.vocab_size:
            num_rows = value.numel() // self.vocab_size
            rows += [num_rows] if num_rows != self.weight_rows else []

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        self.count(tensor, self.saved_rows)
        return tensor


def test_logits_are_computed_for_some_positions_at_a_time(
    model: PreTrainedModel, batch: MlmBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin, objective = MlmObjective(copy.deepcopy(model)), MlmObjective(model)
    with LogitSizes(twin) as sizes:
        twin(batch)
    assert max(sizes.rows) == len(batch.labels) > 8
    expected = twin(batch)["mlm"]
    expected.loss_sum.backward()
    monkeypatch.setattr(mlm, "MAX_LOGITS", 3 * model.config.vocab_size + 1)
    with LogitSizes(objective) as sizes:
        with sizes.saved:
            found = objective(batch)["mlm"]
        found.loss_sum.backward()
    assert max(sizes.rows) == 3 and max(sizes.saved_rows) == 0
    assert torch.allclose(found.loss_sum, expected.loss_sum, rtol=1e-6)
    assert int(found.num_correct) == int(expected.num_correct)
    for (name, one), other in zip(objective.named_parameters(), twin.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        assert one.grad is None or torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-5), name
    with LogitSizes(objective) as sizes, torch.inference_mode():
        assert torch.allclose(objective.predict(batch).losses.sum(), expected.loss_sum, rtol=1e-6)
    assert max(sizes.rows) == 3


def test_a_partitioned_head_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ZeRO stage 3, ranks with more selected tokens than others must not call it more often."""
    objective = MlmObjective(tiny_model("roberta", 1))
    batch = collate(masked_rows(PADDED), 1)
    monkeypatch.setattr(mlm, "MAX_LOGITS", 1)
    for has_full_parameters, expected in ((True, 1), (False, len(batch.labels))):
        objective.has_full_parameters = has_full_parameters
        with LogitSizes(objective) as sizes, torch.no_grad():
            objective(batch)
        assert max(sizes.rows) == expected
