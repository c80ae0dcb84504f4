"""Parts of a model: its encoder and head, its number of positions, and which models are refused."""

import pytest
import torch
from transformers import AutoConfig, BertConfig, RobertaConfig

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of, check_architecture
from tests.support.families import tiny_model
from tests.support.tiny import NUM_POSITIONS

REFUSED = ("xlnet", "esm", "fnet", "longformer", "big_bird", "gpt2", "vit")


def content(num_tokens: int, num_rows: int = 2) -> torch.Tensor:
    """Returns tokens that are neither special nor padding."""
    return torch.randint(10, 290, (num_rows, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


def test_number_of_positions_does_not_count_reserved_ones(any_kind: tuple[str, int]) -> None:
    model = tiny_model(*any_kind)
    parts = architecture_of(model)
    assert parts.num_positions == NUM_POSITIONS
    assert parts.num_positions + parts.position_offset == model.config.max_position_embeddings


@pytest.mark.parametrize("more", [{}, {"legacy": True}, {"legacy": False}], ids=["", "legacy", "new"])
def test_encoder_and_head_compute_the_models_logits_bit_for_bit(any_kind: tuple[str, int], more: dict) -> None:
    model = tiny_model(*any_kind, **(more if any_kind[0].startswith("deberta") else {}))
    parts = architecture_of(model)
    tokens = content(9)
    with torch.no_grad():
        hidden = parts.encoder(input_ids=tokens).last_hidden_state
        expected = model(input_ids=tokens).logits
        assert torch.equal(parts.head(hidden), expected)
        assert torch.allclose(parts.head(hidden[0, 3:4]), expected[0, 3:4], rtol=1e-5, atol=1e-5)
    assert parts.decoder_weight.shape[0] == len(
        parts.decoder_bias if parts.decoder_bias is not None else expected[0, 0]
    )
    is_tied = parts.decoder_weight is model.get_input_embeddings().weight
    assert is_tied == model.config.tie_word_embeddings == (any_kind[0] != "eurobert")


@pytest.mark.parametrize("family", REFUSED)
def test_model_of_another_family_is_refused_by_name(family: str) -> None:
    config = AutoConfig.for_model(family)
    with pytest.raises(ModelError, match=f"somebody/something is a {family} model: only roberta, .* are supported"):
        check_architecture(config, "somebody/something")


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


def test_the_head_starts_with_head_matrix(any_kind: tuple[str, int]) -> None:
    parts = architecture_of(tiny_model(*any_kind))
    if any_kind[0] == "eurobert":
        assert parts.head_matrix is None
        return
    hidden = torch.randn(2, 3, 32)
    with torch.no_grad():
        before = parts.head(hidden)
        for parameter in parts.head_matrix.parameters():
            parameter.zero_()
        after = parts.head(hidden)
    assert before[0].std(dim=0).max() > 0.1
    assert torch.allclose(after, after[0, 0].expand_as(after))
