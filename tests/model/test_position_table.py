"""The learned position table of a model: where it lies, which models have none, and its replacement."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, DistilBertConfig

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of
from longmlm.model.position_table import has_position_table, position_table_of, replace_positions
from tests.support.families import SPECIAL_OF_OTHERS, tiny_model
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS

OFFSETS = {("roberta", 1): 2, ("roberta", 3): 4, ("xlm-roberta", 1): 2, ("camembert", 1): 2}
REASONS = {
    **dict.fromkeys(("deberta", "deberta-v2", "mpnet"), "relative positions"),
    **dict.fromkeys(("modernbert", "roformer", "nomic_bert", "eurobert"), "rotary positions"),
}


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


@torch.no_grad()
def test_the_table_and_everything_as_long_as_it_is_replaced(kind: tuple[str, int], tmp_path: Path) -> None:
    """Reserved rows stay bit for bit, every position reads its row, and nothing is read beyond the last."""
    model, offset = tiny_model(*kind), OFFSETS.get(kind, 0)
    old, keys = position_table_of(model), sorted(model.state_dict())
    assert has_position_table(model)
    assert (old.offset, len(old.usable_rows), len(old.rows.weight)) == (offset, NUM_POSITIONS, NUM_POSITIONS + offset)
    old.rows.weight[:offset].normal_()
    tokens = torch.randint(10, 290, (2, LONG_POSITIONS))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=tokens[:, : NUM_POSITIONS + 1])
    for num_positions in (NUM_POSITIONS // 2, LONG_POSITIONS):
        rows = torch.randn(num_positions, old.rows.embedding_dim)
        replace_positions(model, rows)
        new, num_rows = position_table_of(model), num_positions + offset
        assert torch.equal(
            new.rows.weight.view(torch.int32), torch.cat([old.rows.weight[:offset], rows]).view(torch.int32)
        )
        assert new.rows.weight.requires_grad and new.rows.padding_idx == old.rows.padding_idx
        assert torch.equal(new.embeddings.position_ids, torch.arange(num_rows).unsqueeze(0))
        if kind[0] != "distilbert":  # it has no token types
            assert torch.equal(new.embeddings.token_type_ids, torch.zeros(1, num_rows, dtype=torch.long))
        assert model.config.max_position_embeddings == num_rows
        assert architecture_of(model).num_positions == num_positions
        assert sorted(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    reloaded, read = AutoModelForMaskedLM.from_pretrained(tmp_path), []
    position_table_of(model).rows.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    assert torch.equal(model(input_ids=tokens).logits, reloaded(input_ids=tokens).logits)
    assert [one.expand(2, -1).tolist() for one in read] == [[[*range(offset, offset + LONG_POSITIONS)]] * 2]
    for one in (model, reloaded):
        with pytest.raises((IndexError, RuntimeError)):
            one(input_ids=torch.randint(10, 290, (2, LONG_POSITIONS + 1)))
