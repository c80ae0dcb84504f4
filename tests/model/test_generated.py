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
from longmlm.settings.extend import ExtendRecipe
from tests.support.families import tiny_model, tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_extension

ALPHA = 0.4
GENERATED = tiny_extension("base", alpha=ALPHA, mode="generated")


def long_model(kind: tuple[str, int]) -> PreTrainedModel:
    """Returns a stock long model."""
    model = tiny_model(*kind)
    replace_positions(model, hierarchical_table(position_table_of(model).usable_rows, LONG_POSITIONS, ALPHA))
    return model


def loaded_model(kind: tuple[str, int], extension: Extension = GENERATED) -> LoadedModel:
    return LoadedModel(long_model(kind), tiny_tokenizer(*kind), provenance=Provenance(extension=extension))


def both(kind: tuple[str, int]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Returns the same long model with its positions materialized and generated."""
    materialized, generated = long_model(kind), long_model(kind)
    rebuild_positions(generated, GENERATED)
    assert isinstance(position_table_of(generated).rows, GeneratedPositions)
    return materialized, generated


def content(num_tokens: int) -> torch.Tensor:
    return torch.randint(10, 290, (2, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


@torch.no_grad()
def test_generated_and_materialized_positions_give_the_same_logits_bit_for_bit(kind: tuple[str, int]) -> None:
    materialized, generated = both(kind)
    for length in (1, NUM_POSITIONS, LONG_POSITIONS):
        assert torch.equal(materialized(input_ids=content(length)).logits, generated(input_ids=content(length)).logits)
    with pytest.raises((IndexError, RuntimeError)):
        generated(input_ids=content(LONG_POSITIONS + 1))
    assert architecture_of(generated).num_positions == LONG_POSITIONS


def test_only_reserved_and_base_rows_are_parameters(kind: tuple[str, int]) -> None:
    materialized, generated = both(kind)
    sizes = [{name: value.shape for name, value in model.named_parameters()} for model in (materialized, generated)]
    differing = {name for name in sizes[0] if sizes[0][name] != sizes[1][name]}
    assert sizes[0].keys() == sizes[1].keys()
    assert len(differing) == 1
    table = position_table_of(generated)
    assert sizes[1][differing.pop()] == (table.offset + NUM_POSITIONS, table.rows.embedding_dim)


def test_gradients_are_those_of_the_formula_and_reach_every_base_row_from_all_blocks(kind: tuple[str, int]) -> None:
    materialized, generated = both(kind)
    for model in (materialized, generated):
        model(input_ids=content(LONG_POSITIONS)).logits.square().mean().backward()
    table = position_table_of(materialized)
    of_rows = table.rows.weight.grad[table.offset :].double()
    base = table.usable_rows[:NUM_POSITIONS].double().requires_grad_()
    positions = torch.arange(LONG_POSITIONS)
    high, low = positions // NUM_POSITIONS, positions % NUM_POSITIONS
    (base[low] + ALPHA / (1 - ALPHA) * (base[high] - base[0])).backward(of_rows)
    got = position_table_of(generated).rows.weight.grad[table.offset :]
    assert torch.allclose(got.double(), base.grad, rtol=1e-4, atol=1e-6 * float(base.grad.abs().max()))
    direct = of_rows[:NUM_POSITIONS]
    assert ((got - direct).abs().max(dim=1).values > 1e-9).all()
    assert got.abs().max(dim=1).values.min() > 0


@pytest.mark.parametrize("block", range(-(-LONG_POSITIONS // NUM_POSITIONS)))
def test_a_position_moves_the_base_rows_of_its_block_and_its_offset(block: int) -> None:
    rows = torch.randn(NUM_POSITIONS, 4, generator=torch.Generator().manual_seed(0))
    positions = GeneratedPositions(rows, 0, LONG_POSITIONS, ALPHA)
    position = min(LONG_POSITIONS - 1, block * NUM_POSITIONS + 5)
    positions(torch.tensor([position])).sum().backward()
    moved = set(positions.weight.grad.abs().sum(1).nonzero().flatten().tolist())
    assert moved == ({5} if block == 0 else {position % NUM_POSITIONS, block, 0})


def test_a_stock_model_holds_the_generated_rows(kind: tuple[str, int], tmp_path: Path) -> None:
    _, generated = both(kind)
    with torch.no_grad():
        position_table_of(generated).rows.weight.add_(0.05)
    generated.save_pretrained(tmp_path, state_dict=stock_state(generated, generated.state_dict()))
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path)
    with torch.no_grad():
        tokens = content(LONG_POSITIONS)
        assert torch.equal(stock(input_ids=tokens).logits, generated(input_ids=tokens).logits)
    again = copy.deepcopy(stock)
    rebuild_positions(again, GENERATED)
    assert torch.equal(position_table_of(again).rows.weight, position_table_of(generated).rows.weight)


def test_generated_tiles_repeat_the_base_rows(kind: tuple[str, int]) -> None:
    model = long_model(kind)
    rebuild_positions(model, replace(GENERATED, initialisation="tile"))
    positions = position_table_of(model)
    table = positions.rows.table(positions.rows.weight)[positions.offset :]
    assert torch.equal(table[NUM_POSITIONS : 2 * NUM_POSITIONS], table[:NUM_POSITIONS])


def test_materialized_models_stay_as_they_are(kind: tuple[str, int]) -> None:
    model = long_model(kind)
    rebuild_positions(model, replace(GENERATED, mode="materialized"))
    rebuild_positions(model, None)
    assert type(position_table_of(model).rows) is torch.nn.Embedding
    assert stock_state(model, model.state_dict()).keys() == model.state_dict().keys()


@pytest.mark.parametrize("num_positions", [NUM_POSITIONS - 6, NUM_POSITIONS, 100, NUM_POSITIONS**2])
def test_any_length_up_to_n_squared_can_be_exported(kind: tuple[str, int], num_positions: int) -> None:
    loaded = loaded_model(kind)
    other = with_num_positions(loaded, num_positions)
    assert other.provenance.extension.num_positions == num_positions
    assert architecture_of(other.model).num_positions == other.tokenizer.model_max_length == num_positions
    shared = min(num_positions, LONG_POSITIONS)
    with torch.no_grad():
        logits = [one.model(input_ids=content(shared)).logits for one in (loaded, other)]
        assert torch.equal(*logits)
        assert other.model(input_ids=content(num_positions)).logits.isfinite().all()


def test_other_lengths_are_refused() -> None:
    with pytest.raises(PositionsError, match=f"num_positions = {NUM_POSITIONS**2 + 1}: .* {NUM_POSITIONS**2} "):
        with_num_positions(loaded_model(("bert", 0)), NUM_POSITIONS**2 + 1)
    for loaded in (loaded_model(("bert", 0), replace(GENERATED, mode="materialized")), loaded_model(("bert", 0), None)):
        with pytest.raises(PositionsError, match="generated mode"):
            with_num_positions(loaded, 100)


@pytest.mark.parametrize("initialisation", ["random", "interpolate", "stretched", "fitted"])
def test_rows_that_are_not_computed_from_the_base_rows_cannot_be_generated(initialisation: str) -> None:
    with pytest.raises(ValueError, match="hierarchical or tile"):
        ExtendRecipe(num_positions=99, mode="generated", initialisation=initialisation)


def test_the_base_model_keeps_its_positions() -> None:
    loaded = LoadedModel(tiny_model("bert", 0), tiny_tokenizer("bert", 0))
    longer = with_positions(loaded, torch.zeros(LONG_POSITIONS, 32))
    assert architecture_of(loaded.model).num_positions == NUM_POSITIONS
    assert architecture_of(longer.model).num_positions == LONG_POSITIONS
