"""Isolated documents: a row gives the outputs and gradients of each of its documents alone, at the same positions."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForMaskedLM, LongformerConfig, PreTrainedModel

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row, SpecialTokens
from longmlm.errors import ModelError
from longmlm.model.architecture import parts_of, set_dropout
from longmlm.model.families import FAMILIES, check_can_isolate
from longmlm.model.mlm import MlmObjective, checkpoint_activations, is_same_document
from longmlm.model.packed_attention import by_row, use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.settings.pretrain import ComputePrecision
from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS, tiny_model

NOTHING = 1e-12  # a dropout that drops nothing, but takes the way of dropout
NO_CONVOLUTION = {("deberta-v2", 0): {"conv_kernel_size": 0}}
WINDOW = Window(2, 1)
FRAME = SpecialTokens(cls=0, sep=2, mask=4, pad=1, unk=3, all=(0, 1, 2, 3, 4))
DOCUMENTS = [[5, 1, 4], [7], [2, 14], [1, 1, 3]]  # lengths by row, special tokens included
WAYS = [
    *((kind, "padded") for kind in SPECIAL | SPECIAL_OF_OTHERS),
    *((kind, way) for kind in SPECIAL for way in ("packed", "window")),
]


def row_of(lengths: Sequence[int], seed: int = 0) -> MaskedRow:
    """Returns a row of documents of these lengths, with every second token selected."""
    tokens = np.random.default_rng([seed, *lengths]).integers(10, 250, sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    starts[0] = min(1, sum(lengths) - 1)  # behind [CLS]
    selected = np.arange(0, len(tokens), 2)
    return MaskedRow(Row(tokens, starts, np.zeros(len(lengths), int)), selected, tokens[selected])


def objective_of(kind: tuple[str, int], way: str, precision: ComputePrecision = "no") -> MlmObjective:
    model = tiny_model(*kind, **NO_CONVOLUTION.get(kind, {}))
    if way == "packed":
        use_packed_attention(model)
    if way == "window":
        use_window(model, WINDOW)
    return MlmObjective(model, precision, isolates_documents=True)


def batch_of(objective: MlmObjective, documents: Sequence[Sequence[int]] = DOCUMENTS) -> MlmBatch:
    pad = None if objective.reads_packed_batches else objective.model.config.pad_token_id
    return collate([*map(row_of, documents)], pad, isolates_documents=True)


def losses_alone(objective: MlmObjective, documents: Sequence[Sequence[int]] = DOCUMENTS) -> Tensor:
    """Returns the losses that transformers' model, called with one document at a time at its positions, gives."""
    model, losses = objective.model, []
    for masked in map(row_of, documents):
        ends = np.cumsum(masked.row.document_lengths)
        for begin, end in zip(ends - masked.row.document_lengths, ends, strict=True):
            positions = torch.arange(begin, end)[None] + parts_of(model).position_offset
            more: dict[str, Any] = {} if model.config.model_type == "roformer" else {"position_ids": positions}
            logits = model(input_ids=torch.from_numpy(masked.row.input_ids[begin:end])[None], **more).logits[0]
            own = (begin <= masked.selected) & (masked.selected < end)
            selected, labels = (torch.from_numpy(one[own]) for one in (masked.selected - begin, masked.labels))
            losses.append(torch.nn.functional.cross_entropy(logits[selected], labels, reduction="none"))
    return torch.cat(losses)


def gradients(objective: MlmObjective, losses: Tensor) -> Tensor:
    objective.zero_grad()
    losses.sum().backward()
    return torch.cat([one.grad.flatten() for one in objective.parameters() if one.grad is not None])


@pytest.mark.parametrize(("kind", "way"), WAYS, ids=str)
def test_a_row_gives_the_losses_and_gradients_of_each_document_alone(kind: tuple[str, int], way: str) -> None:
    objective = objective_of(kind, way)
    assert objective.reads_packed_batches == (way != "padded")
    expected = losses_alone(objective)
    expected_gradients = gradients(objective, expected)
    batch = batch_of(objective)
    for dropout in (0.0, NOTHING):
        set_dropout(objective.train(), dropout)
        found = objective.predict(batch).losses
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert (gradients(objective, found) - expected_gradients).norm() < 1e-4 * expected_gradients.norm()
    with torch.inference_mode():
        torch.testing.assert_close(objective.eval().predict(batch).losses, expected, rtol=1e-4, atol=1e-4)
    objective.isolates_documents = False
    pad = None if objective.reads_packed_batches else objective.model.config.pad_token_id
    whole = objective.predict(collate([*map(row_of, DOCUMENTS)], pad)).losses
    assert (whole - expected).abs().max() > 0.1  # where they may, tokens attend to other documents


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((("roberta", 1), way) for way in ("padded", "packed", "window")),
        *((kind, "padded") for kind in (("deberta", 0), ("modernbert", 3), ("mpnet", 1))),
    ],
)
def test_bf16_gives_them_roughly(kind: tuple[str, int], way: str) -> None:
    expected, objective = losses_alone(objective_of(kind, way)).detach(), objective_of(kind, way, "bf16")
    for dropout in (0.0, NOTHING):
        set_dropout(objective.train(), dropout)
        found = objective.predict(batch_of(objective)).losses.detach()
        assert (found - expected).abs().mean() < 0.05 < expected.std()


@pytest.mark.parametrize("way", ["padded", "packed", "window"])
def test_recomputed_layers_give_the_same_gradients(way: str) -> None:
    found = []
    for is_recomputed in (False, True):
        objective = objective_of(("roberta", 1), way)
        if is_recomputed:
            checkpoint_activations(objective.model)
        set_dropout(objective.train(), 0.2)
        torch.manual_seed(4)
        found.append(gradients(objective, objective.predict(batch_of(objective)).losses))
    assert torch.equal(*found)


def test_eager_attention_gets_the_mask_as_terms_of_its_scores() -> None:
    objective = objective_of(("modernbert", 3), "padded")
    expected = losses_alone(objective)
    cast(PreTrainedModel, objective.model).set_attn_implementation("eager")
    torch.testing.assert_close(objective.predict(batch_of(objective)).losses, expected, rtol=1e-4, atol=1e-4)


def test_a_released_longformer_reads_documents_as_its_rows() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = LongformerConfig(
        vocab_size=300, attention_window=4, max_position_embeddings=20, initializer_range=0.3, **sizes
    )
    config.num_global_tokens = 1
    torch.manual_seed(0)
    objective = MlmObjective(AutoModelForMaskedLM.from_config(config).eval(), isolates_documents=True)

    def with_global_token(**inputs: Tensor) -> Any:
        is_global = torch.zeros_like(inputs["input_ids"])
        is_global[:, 0] = 1
        return forward(global_attention_mask=is_global, **inputs)

    with torch.inference_mode():
        found, forward = objective.predict(batch_of(objective)).losses, objective.model.forward
        objective.model.forward = with_global_token
        torch.testing.assert_close(found, losses_alone(objective), rtol=1e-4, atol=1e-4)


lengths_of_documents = st.lists(st.integers(1, 20), min_size=1, max_size=6)


@given(st.lists(lengths_of_documents, min_size=1, max_size=5), st.booleans())
def test_lengths_of_a_batch_cover_it_and_the_mask_joins_the_tokens_of_a_document(
    documents: list[list[int]], is_packed: bool
) -> None:
    masked = [row_of(lengths) for lengths in documents]
    assert [one.row.document_lengths for one in masked] == [tuple(lengths) for lengths in documents]
    batch = collate(masked, None if is_packed else 1, isolates_documents=True)
    assert min(batch.isolated_lengths) > 0 and sum(batch.isolated_lengths) == batch.input_ids.numel()
    plain = collate(masked, None if is_packed else 1)
    assert plain.isolated_lengths == () and plain.row_lengths == batch.row_lengths
    assert torch.equal(plain.input_ids, batch.input_ids) and torch.equal(plain.selected, batch.selected)
    if is_packed:
        assert batch.isolated_lengths == tuple(length for lengths in documents for length in lengths)
        return
    mask = is_same_document(batch)
    longest = batch.input_ids.shape[1]
    for row, lengths in enumerate(documents):
        numbers = [number for number, length in enumerate([*lengths, longest - sum(lengths)]) for _ in range(length)]
        assert mask[row, 0].tolist() == [[one == other for other in numbers] for one in numbers]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_a_view_of_a_row_keeps_the_documents_that_it_shows(lengths: list[int], data: st.DataObject) -> None:
    lengths = [lengths[0] + 2, *lengths]
    begin = data.draw(st.integers(1, sum(lengths) - 2))
    end = data.draw(st.integers(begin + 1, sum(lengths) - 1))
    shown = np.repeat(np.arange(len(lengths)), lengths)[begin:end]
    counts = np.unique_counts(shown).counts
    for end_of_view in (0, -1):  # [CLS] and the separator of the view
        counts[end_of_view] += 1
    assert row_of(lengths).row.window(begin, end, FRAME).document_lengths == tuple(counts.tolist())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_functions_by_row_see_each_row_alone_in_groups_of_similar_length(lengths: list[int]) -> None:
    states, seen = torch.arange(2.0 * sum(lengths)).view(-1, 2), []

    def cumulated(rows: Tensor, is_token: Tensor) -> Tensor:
        seen.extend(own := is_token.sum(1).tolist())
        assert max(own) < 2 * min(own) and is_token.shape[1] == max(own)
        return (rows * is_token.unsqueeze(-1)).cumsum(1)

    found = by_row(lengths, [states], cumulated)
    assert torch.equal(found, torch.cat([row.cumsum(0) for row in states.split(lengths)]))
    assert sorted(seen) == sorted(lengths)


def test_only_a_convolution_rules_isolation_out() -> None:
    for family in FAMILIES:
        check_can_isolate(SimpleNamespace(model_type=family, conv_kernel_size=0), "some/model")
        check_can_isolate(SimpleNamespace(model_type=family), "some/model")
    with pytest.raises(ModelError, match="some/model .*conv_kernel_size = 3.*remove recipe.isolate_documents$"):
        check_can_isolate(SimpleNamespace(model_type="deberta-v2", conv_kernel_size=3), "some/model")
