"""A window in the lowest layers alone: equals eager attention with one mask per layer, in padded and packed batches."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from longmlm.batches.collate import MlmBatch
from longmlm.errors import ModelError
from longmlm.model.architecture import layers_of, set_dropout
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import layers_by_window, use_window, window_of
from tests.model.test_window_attention import batch_of, dense_mask, loss_and_gradients
from tests.support.families import tiny_model

WINDOW = Window(3, 1, num_layers=1)


def local(kind: tuple[str, int]) -> MlmObjective:
    objective = MlmObjective(tiny_model(*kind).train())
    use_window(objective.model, WINDOW)
    set_dropout(objective, 0.0)
    return objective


def of_layers(kind: tuple[str, int], batch: MlmBatch) -> Tensor:
    """Returns the logits of eager attention, whose layers get masks of their own, written independently."""
    eager = tiny_model(*kind)
    eager.set_attn_implementation("eager")
    is_token = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    full = is_token.bool()[:, None, None, :] | torch.eye(16, dtype=torch.bool)
    masks = [dense_mask(WINDOW, 16) & full | torch.eye(16, dtype=torch.bool), full]
    added = [torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min) for mask in masks]

    def use(mask: Tensor) -> None:
        for layer, own in zip(layers_of(eager.base_model), added, strict=True):
            layer.register_forward_pre_hook(
                lambda _, args, kwargs, own=own: (
                    (args[0], own, *args[2:]) if len(args) > 1 else args,
                    kwargs | ({"attention_mask": own} if "attention_mask" in kwargs else {}),
                ),
                with_kwargs=True,
            )

    use(full)
    with torch.no_grad():
        return eager(input_ids=batch.input_ids, attention_mask=is_token.long()).logits


@pytest.mark.parametrize("lengths", [[16, 16], [16, 3, 9]], ids=["full", "padded"])
def test_each_layer_computes_what_eager_attention_does_with_its_mask(kind: tuple[str, int], lengths: list[int]) -> None:
    if kind[0] == "albert":  # whose layers share their weights
        with pytest.raises(ModelError, match="ALBERT's do: remove it"):
            local(kind)
        return
    batch, ours = batch_of(lengths), local(kind)
    expected = of_layers(kind, batch)
    shown = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    for is_trained in (False, True):
        with torch.set_grad_enabled(is_trained):
            logits = ours.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits.detach()
        torch.testing.assert_close(logits[shown.bool()], expected[shown.bool()], rtol=1e-4, atol=1e-4)
    use_window(ours.model, replace(WINDOW, num_layers=None))
    with torch.no_grad():
        everywhere = ours.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    assert (everywhere - logits)[shown.bool()].abs().max() > 0.01


def packed(batch: MlmBatch, lengths: list[int]) -> MlmBatch:
    """Returns the same rows one after the other, without padding."""
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    index = is_token.flatten().cumsum(0) - 1
    tokens = batch.input_ids[is_token].unsqueeze(0)
    return MlmBatch(tokens, None, index[batch.selected], batch.labels, row_lengths=tuple(lengths))


@pytest.mark.parametrize("dropout", [0.0, 1e-9], ids=["without dropout", "by chunks"])
def test_packed_rows_have_the_losses_and_gradients_of_padded_ones(dropout: float) -> None:
    lengths, found = [16, 3, 9], []
    batch = batch_of(lengths)
    for one in (batch, packed(batch, lengths)):
        objective = local(("roberta", 1))
        set_dropout(objective, dropout)
        assert objective.reads_packed_batches
        found.append(loss_and_gradients(objective, one))
        with torch.no_grad():
            found[-1].append(objective.predict(one)[0])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_recomputed_layers_keep_their_numbers() -> None:
    kept, recomputed = (local(("roberta", 1)) for _ in range(2))
    checkpoint_activations(recomputed.model)
    found = [loss_and_gradients(objective, batch_of([16, 9])) for objective in (kept, recomputed)]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_as_many_local_layers_as_the_model_has_are_a_window_everywhere() -> None:
    batch, found = batch_of([16, 9]), []
    for number in (2, None):
        model = tiny_model("bert", 0)
        use_window(model, Window(2, 1, number))
        with torch.no_grad():
            found.append(model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits)
    assert torch.equal(*found)


def test_copies_keep_their_local_layers() -> None:
    objective = local(("roberta", 1))
    use_packed_attention(objective.model)
    other, batch = copy.deepcopy(objective), batch_of([16])
    assert window_of(other.model) == WINDOW
    assert layers_by_window(other.model) == {WINDOW: 1, None: 1}
    with torch.no_grad():
        assert torch.equal(other.logits(batch), objective.logits(batch))


def test_more_local_layers_than_the_model_has_are_refused() -> None:
    with pytest.raises(ModelError, match="local_layers = 3, but the model has 2 layers: set fewer"):
        use_window(tiny_model("roberta", 1), Window(3, 1, 3))


def test_a_window_that_transformers_does_not_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("roberta", 1)
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda _: False))
    with pytest.raises(ModelError, match="transformers cannot change the attention of this RobertaForMaskedLM"):
        use_window(model, WINDOW)
