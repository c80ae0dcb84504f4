"""Parts of a model: where its positions begin, which models are refused, and the swap of the table."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, DistilBertConfig, PreTrainedModel, RobertaConfig

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of, check_architecture, replace_positions
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_model

OFFSETS = {
    ("roberta", 1): 2,
    ("roberta", 3): 4,
    ("xlm-roberta", 1): 2,
    ("camembert", 1): 2,
    **{(family, 0): 0 for family in ("bert", "albert", "electra", "distilbert")},
}
REFUSED = {
    "deberta": "relative positions",
    "deberta-v2": "relative positions",
    "mpnet": "relative positions",
    "xlnet": "relative positions",
    "roformer": "rotary positions",
    "modernbert": "rotary positions",
    "esm": "rotary or other positions",
    "fnet": "no attention",
    "longformer": "its own windowed attention",
    "big_bird": "its own windowed attention",
    "gpt2": "only roberta, .* and distilbert models",
    "vit": "only roberta, .* and distilbert models",
}


def new_table(model: PreTrainedModel, num_positions: int = LONG_POSITIONS) -> torch.Tensor:
    """Returns rows for the model that are not near to each other."""
    width = architecture_of(model).position_table.embedding_dim
    return torch.randn(num_positions, width, generator=torch.Generator().manual_seed(5))


def content(num_tokens: int, num_rows: int = 2) -> torch.Tensor:
    """Returns tokens that are neither special nor padding."""
    return torch.randint(10, 290, (num_rows, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


def test_offset_is_read_from_the_model(kind: tuple[str, int]) -> None:
    parts = architecture_of(tiny_model(*kind))
    assert parts.position_offset == OFFSETS[kind]
    assert parts.num_positions == NUM_POSITIONS
    assert parts.position_table.num_embeddings == NUM_POSITIONS + OFFSETS[kind]


def test_encoder_and_head_compute_the_models_logits_bit_for_bit(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    parts = architecture_of(model)
    tokens = content(9)
    with torch.no_grad():
        hidden = parts.encoder(input_ids=tokens).last_hidden_state
        assert torch.equal(parts.decoder(parts.head_transform(hidden)), model(input_ids=tokens).logits)
    assert parts.decoder is model.get_output_embeddings()


@pytest.mark.parametrize("family", REFUSED)
def test_model_without_a_table_of_positions_is_refused_by_name_and_reason(family: str) -> None:
    config = AutoConfig.for_model(family)
    with pytest.raises(ModelError, match=REFUSED[family]) as caught:
        check_architecture(config, "somebody/something")
    assert "somebody/something" in str(caught.value)
    assert family in str(caught.value)


@pytest.mark.parametrize("kind_of_positions", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("config_kind", [BertConfig, RobertaConfig])
def test_relative_positions_of_a_known_family_are_refused(config_kind: type, kind_of_positions: str) -> None:
    config = config_kind(position_embedding_type=kind_of_positions)
    with pytest.raises(ModelError, match=f"{kind_of_positions} positions"):
        check_architecture(config, "a model")
    check_architecture(config_kind(position_embedding_type="absolute"), "a model")
    check_architecture(config_kind(), "a model")


@pytest.mark.parametrize("config_kind", [BertConfig, RobertaConfig])
def test_a_decoder_is_refused(config_kind: type) -> None:
    with pytest.raises(ModelError, match=r"a model is a decoder .*is_decoder"):
        check_architecture(config_kind(is_decoder=True), "a model")
    check_architecture(config_kind(is_decoder=False), "a model")


def test_sinusoidal_positions_are_refused() -> None:
    with pytest.raises(ModelError, match="sinusoidal positions"):
        check_architecture(DistilBertConfig(sinusoidal_pos_embds=True), "a model")
    check_architecture(DistilBertConfig(), "a model")


def test_the_head_starts_with_head_matrix(kind: tuple[str, int]) -> None:
    parts = architecture_of(tiny_model(*kind))
    hidden = torch.randn(2, 3, 32)
    with torch.no_grad():
        before = parts.head_transform(hidden)
        parts.head_matrix.weight.zero_()
        parts.head_matrix.bias.zero_()
        after = parts.head_transform(hidden)
    assert before[0].std(dim=0).max() > 0.1
    assert torch.allclose(after, after[0, 0].expand_as(after))


def test_reserved_rows_are_carried_over_bit_for_bit(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    table = new_table(model)
    offset = OFFSETS[kind]
    with torch.no_grad():
        architecture_of(model).position_table.weight[:offset].normal_()
    reserved = architecture_of(model).position_table.weight[:offset].clone()
    replace_positions(model, table)
    weight = architecture_of(model).position_table.weight
    assert torch.equal(weight[:offset].view(torch.int32), reserved.view(torch.int32))
    assert torch.equal(weight[offset:].view(torch.int32), table.view(torch.int32))


@pytest.mark.parametrize("num_positions", [LONG_POSITIONS, NUM_POSITIONS // 2])
def test_everything_as_long_as_the_table_follows_it(kind: tuple[str, int], num_positions: int) -> None:
    model = tiny_model(*kind)
    keys = sorted(model.state_dict())
    before = architecture_of(model).position_table
    padding, width = before.padding_idx, before.embedding_dim
    replace_positions(model, new_table(model, num_positions))
    parts = architecture_of(model)
    num_rows = num_positions + OFFSETS[kind]
    assert parts.num_positions == num_positions
    assert parts.position_table.weight.shape == (num_rows, width)
    assert parts.position_table.weight.requires_grad
    assert parts.position_table.padding_idx == padding
    assert torch.equal(parts.embeddings.position_ids, torch.arange(num_rows).unsqueeze(0))
    if kind[0] != "distilbert":  # it has no token types
        assert torch.equal(parts.embeddings.token_type_ids, torch.zeros(1, num_rows, dtype=torch.long))
    assert model.config.max_position_embeddings == num_rows
    assert sorted(model.state_dict()) == keys


def test_every_position_reads_its_row(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    replace_positions(model, new_table(model))
    read = []
    architecture_of(model).position_table.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
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
