"""The learned position table of a model: where it lies, which models have none, and its replacement."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, DistilBertConfig, PreTrainedModel

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of
from longmlm.model.position_table import has_position_table, position_table_of, replace_positions
from tests.support.families import SPECIAL_OF_OTHERS, tiny_model
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS

OFFSETS = {
    ("roberta", 1): 2,
    ("roberta", 3): 4,
    ("xlm-roberta", 1): 2,
    ("camembert", 1): 2,
    **{(family, 0): 0 for family in ("bert", "albert", "electra", "distilbert")},
}
REASONS = {
    **dict.fromkeys(("deberta", "deberta-v2", "mpnet"), "relative positions"),
    **dict.fromkeys(("modernbert", "roformer", "nomic_bert", "eurobert"), "rotary positions"),
}


def new_table(model: PreTrainedModel, num_positions: int = LONG_POSITIONS) -> torch.Tensor:
    """Returns rows for the model that are not near to each other."""
    width = position_table_of(model).rows.embedding_dim
    return torch.randn(num_positions, width, generator=torch.Generator().manual_seed(5))


def content(num_tokens: int, num_rows: int = 2) -> torch.Tensor:
    """Returns tokens that are neither special nor padding."""
    return torch.randint(10, 290, (num_rows, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


def test_offset_is_read_from_the_model(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    table = position_table_of(model)
    assert table.offset == architecture_of(model).position_offset == OFFSETS[kind]
    assert len(table.usable_rows) == NUM_POSITIONS
    assert table.rows.num_embeddings == NUM_POSITIONS + OFFSETS[kind]
    assert has_position_table(model)


@pytest.mark.parametrize("other", SPECIAL_OF_OTHERS, ids=[family for family, _ in SPECIAL_OF_OTHERS])
def test_a_model_whose_positions_are_computed_is_refused_by_name_and_reason(other: tuple[str, int]) -> None:
    model = tiny_model(*other)
    assert not has_position_table(model)
    reason = f"somebody/it is a {other[0]} model, which cannot be extended: it has {REASONS[other[0]]}; .*16 tokens"
    with pytest.raises(ModelError, match=reason):
        position_table_of(model, "somebody/it")
    with pytest.raises(ModelError, match=REASONS[other[0]]):
        replace_positions(model, torch.zeros(LONG_POSITIONS, 32))


def test_sinusoidal_positions_are_refused() -> None:
    model = AutoModelForMaskedLM.from_config(DistilBertConfig(dim=32, n_heads=2, n_layers=1, sinusoidal_pos_embds=True))
    with pytest.raises(ModelError, match="cannot be extended: it has sinusoidal positions"):
        position_table_of(model)


def test_reserved_rows_are_carried_over_bit_for_bit(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    table = new_table(model)
    offset = OFFSETS[kind]
    with torch.no_grad():
        position_table_of(model).rows.weight[:offset].normal_()
    reserved = position_table_of(model).rows.weight[:offset].clone()
    replace_positions(model, table)
    weight = position_table_of(model).rows.weight
    assert torch.equal(weight[:offset].view(torch.int32), reserved.view(torch.int32))
    assert torch.equal(weight[offset:].view(torch.int32), table.view(torch.int32))


@pytest.mark.parametrize("num_positions", [LONG_POSITIONS, NUM_POSITIONS // 2])
def test_everything_as_long_as_the_table_follows_it(kind: tuple[str, int], num_positions: int) -> None:
    model = tiny_model(*kind)
    keys = sorted(model.state_dict())
    before = position_table_of(model).rows
    padding, width = before.padding_idx, before.embedding_dim
    replace_positions(model, new_table(model, num_positions))
    parts = architecture_of(model)
    num_rows = num_positions + OFFSETS[kind]
    assert parts.num_positions == num_positions
    assert position_table_of(model).rows.weight.shape == (num_rows, width)
    assert position_table_of(model).rows.weight.requires_grad
    assert position_table_of(model).rows.padding_idx == padding
    assert torch.equal(position_table_of(model).embeddings.position_ids, torch.arange(num_rows).unsqueeze(0))
    if kind[0] != "distilbert":  # it has no token types
        assert torch.equal(
            position_table_of(model).embeddings.token_type_ids, torch.zeros(1, num_rows, dtype=torch.long)
        )
    assert model.config.max_position_embeddings == num_rows
    assert sorted(model.state_dict()) == keys


def test_every_position_reads_its_row(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    replace_positions(model, new_table(model))
    read = []
    position_table_of(model).rows.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    with torch.no_grad():
        model(input_ids=content(LONG_POSITIONS))
    expected = torch.arange(LONG_POSITIONS) + OFFSETS[kind]
    assert len(read) == 1
    assert torch.equal(read[0].expand(2, -1), expected.expand(2, -1))


def test_extended_model_runs_at_its_length_and_not_beyond(kind: tuple[str, int], tmp_path) -> None:
    model = tiny_model(*kind)
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        model(input_ids=content(NUM_POSITIONS + 1))
    replace_positions(model, new_table(model))
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    tokens = content(LONG_POSITIONS)
    with torch.no_grad():
        logits = [one(input_ids=tokens).logits for one in (model, reloaded)]
        assert logits[0].shape == (2, LONG_POSITIONS, model.config.vocab_size)
        assert torch.equal(*logits)
        for one in (model, reloaded):
            with pytest.raises((IndexError, RuntimeError)):
                one(input_ids=content(LONG_POSITIONS + 1))
