"""Generated mode: only base rows are trained, and a stock model gets the rows computed from them."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from longmlm.artifacts.provenance import Extension, Provenance
from longmlm.errors import PositionsError
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import with_num_positions, with_positions
from longmlm.model.loading import LoadedModel
from longmlm.model.position_table import (
    GeneratedPositions,
    hierarchical_table,
    position_table_of,
    rebuild_positions,
    replace_positions,
    stock_state,
)
from tests.support.families import tiny_model, tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_extension

ALPHA = 0.4
GENERATED = tiny_extension("base", alpha=ALPHA, mode="generated")
ROBERTA = ("roberta", 3)  # with reserved rows


def long_model(kind: tuple[str, int] = ROBERTA) -> PreTrainedModel:
    """Returns a stock long model."""
    model = tiny_model(*kind)
    replace_positions(model, hierarchical_table(position_table_of(model).usable_rows, LONG_POSITIONS, ALPHA))
    return model


def loaded_model(extension: Extension | None = GENERATED) -> LoadedModel:
    return LoadedModel(long_model(), tiny_tokenizer(*ROBERTA), provenance=Provenance(extension=extension))


def content(num_tokens: int) -> torch.Tensor:
    return torch.randint(10, 290, (2, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


def test_generated_positions_give_logits_bit_for_bit_and_gradients_of_the_formula(kind: tuple[str, int]) -> None:
    """Only reserved and base rows are parameters, and each base row gets a gradient from all blocks."""
    models = materialized, generated = long_model(kind), long_model(kind)
    rebuild_positions(generated, GENERATED)
    sizes = [{name: value.shape for name, value in model.named_parameters()} for model in models]
    differing = {name for name in sizes[0] if sizes[0][name] != sizes[1][name]}
    table, stock = position_table_of(generated), position_table_of(materialized)
    assert isinstance(table.rows, GeneratedPositions) and sizes[0].keys() == sizes[1].keys()
    assert [sizes[1][name] for name in differing] == [(table.offset + NUM_POSITIONS, table.rows.embedding_dim)]
    assert architecture_of(generated).num_positions == LONG_POSITIONS
    for length in (1, NUM_POSITIONS, LONG_POSITIONS):
        logits = [model(input_ids=content(length)).logits for model in models]
        assert torch.equal(*logits)
    for one in logits:
        one.square().mean().backward()
    with pytest.raises((IndexError, RuntimeError)):
        generated(input_ids=content(LONG_POSITIONS + 1))
    of_rows = stock.rows.weight.grad[stock.offset :].double()
    base = stock.usable_rows[:NUM_POSITIONS].double().requires_grad_()
    positions = torch.arange(LONG_POSITIONS)
    high, low = positions // NUM_POSITIONS, positions % NUM_POSITIONS
    (base[low] + ALPHA / (1 - ALPHA) * (base[high] - base[0])).backward(of_rows)
    gradient = table.rows.weight.grad[table.offset :]
    assert torch.allclose(gradient.double(), base.grad, rtol=1e-4, atol=1e-6 * float(base.grad.abs().max()))
    assert ((gradient - of_rows[:NUM_POSITIONS]).abs().max(dim=1).values > 1e-9).all()
    assert gradient.abs().max(dim=1).values.min() > 0


@pytest.mark.parametrize("block", range(-(-LONG_POSITIONS // NUM_POSITIONS)))
def test_a_position_moves_the_base_rows_of_its_block_and_its_offset(block: int) -> None:
    rows = torch.randn(NUM_POSITIONS, 4, generator=torch.Generator().manual_seed(0))
    positions = GeneratedPositions(rows, 0, LONG_POSITIONS, ALPHA)
    position = min(LONG_POSITIONS - 1, block * NUM_POSITIONS + 5)
    positions(torch.tensor([position])).sum().backward()
    moved = set(positions.weight.grad.abs().sum(1).nonzero().flatten().tolist())
    assert moved == ({5} if block == 0 else {position % NUM_POSITIONS, block, 0})


@torch.no_grad()
def test_a_stock_model_holds_the_generated_rows(tmp_path: Path) -> None:
    generated = long_model()
    rebuild_positions(generated, GENERATED)
    position_table_of(generated).rows.weight.add_(0.05)
    generated.save_pretrained(tmp_path, state_dict=stock_state(generated, generated.state_dict()))
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path)
    tokens = content(LONG_POSITIONS)
    assert torch.equal(stock(input_ids=tokens).logits, generated(input_ids=tokens).logits)
    again = copy.deepcopy(stock)
    rebuild_positions(again, GENERATED)
    assert torch.equal(position_table_of(again).rows.weight, position_table_of(generated).rows.weight)


def test_generated_tiles_repeat_the_base_rows_and_materialized_models_stay_as_they_are() -> None:
    model = long_model()
    for extension in (replace(GENERATED, mode="materialized"), None):
        rebuild_positions(model, extension)
        assert type(position_table_of(model).rows) is torch.nn.Embedding
        assert stock_state(model, model.state_dict()).keys() == model.state_dict().keys()
    rebuild_positions(model, replace(GENERATED, initialisation="tile"))
    positions = position_table_of(model)
    table = positions.rows.table(positions.rows.weight)[positions.offset :]
    assert torch.equal(table[NUM_POSITIONS : 2 * NUM_POSITIONS], table[:NUM_POSITIONS])


@torch.no_grad()
def test_any_length_up_to_n_squared_can_be_exported() -> None:
    loaded = loaded_model()
    for num_positions in (NUM_POSITIONS - 6, NUM_POSITIONS, 100, NUM_POSITIONS**2):
        other = with_num_positions(loaded, num_positions)
        assert other.provenance.extension.num_positions == num_positions
        assert architecture_of(other.model).num_positions == other.tokenizer.model_max_length == num_positions
        shared = content(min(num_positions, LONG_POSITIONS))
        assert torch.equal(loaded.model(input_ids=shared).logits, other.model(input_ids=shared).logits)
        assert other.model(input_ids=content(num_positions)).logits.isfinite().all()
    with pytest.raises(PositionsError, match=f"num_positions = {NUM_POSITIONS**2 + 1}: .* {NUM_POSITIONS**2} "):
        with_num_positions(loaded, NUM_POSITIONS**2 + 1)
    for extension in (replace(GENERATED, mode="materialized"), None):
        with pytest.raises(PositionsError, match="generated mode"):
            with_num_positions(loaded_model(extension), 100)


def test_the_base_model_keeps_its_positions() -> None:
    loaded = LoadedModel(tiny_model("bert", 0), tiny_tokenizer("bert", 0))
    longer = with_positions(loaded, torch.zeros(LONG_POSITIONS, 32))
    assert [architecture_of(one.model).num_positions for one in (loaded, longer)] == [NUM_POSITIONS, LONG_POSITIONS]
