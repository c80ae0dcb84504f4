"""Parts of a model: its encoder and head, its number of positions, and which models are refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, BertConfig, RobertaConfig

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of
from longmlm.model.families import FAMILIES, check_architecture, has_head, num_usable_positions
from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS, tiny_model
from tests.support.tiny import NUM_POSITIONS

REFUSED = ("xlnet", "esm", "fnet", "longformer", "big_bird", "gpt2", "vit")
LEGACY = ((("deberta", 0), {"legacy": True}), (("deberta-v2", 0), {"legacy": False}))


def test_every_family_is_tested() -> None:
    assert {family for family, _ in SPECIAL | SPECIAL_OF_OTHERS} == set(FAMILIES)


@pytest.mark.parametrize(("kind", "more"), [*((kind, {}) for kind in SPECIAL | SPECIAL_OF_OTHERS), *LEGACY], ids=str)
@torch.no_grad()
def test_encoder_and_head_compute_the_models_logits_bit_for_bit(kind: tuple[str, int], more: dict) -> None:
    model = tiny_model(*kind, **more)
    parts, tokens = architecture_of(model), torch.randint(10, 290, (2, 9))
    assert parts.num_positions == model.config.max_position_embeddings - parts.position_offset == NUM_POSITIONS
    hidden, logits = parts.encoder(input_ids=tokens).last_hidden_state, model(input_ids=tokens).logits
    assert torch.equal(parts.head(hidden), logits)
    assert torch.allclose(parts.head(hidden[0, 3:4]), logits[0, 3:4], rtol=1e-5, atol=1e-5)
    assert len(parts.decoder_weight) == len(logits[0, 0] if parts.decoder_bias is None else parts.decoder_bias)
    is_tied = parts.decoder_weight is model.get_input_embeddings().weight
    assert is_tied == model.config.tie_word_embeddings == (kind[0] != "eurobert")
    assert (parts.head_matrix is None) == (kind[0] == "eurobert")
    if parts.head_matrix is not None:  # the head starts with it
        assert logits[0].std(dim=0).max() > 0.1
        for parameter in parts.head_matrix.parameters():
            parameter.zero_()
        after = parts.head(hidden)
        assert torch.allclose(after, after[0, 0].expand_as(after))


@pytest.mark.parametrize("family", REFUSED)
def test_model_of_another_family_is_refused_by_name(family: str) -> None:
    with pytest.raises(ModelError, match=f"somebody/something is a {family} model: only roberta, .* are supported"):
        check_architecture(AutoConfig.for_model(family), "somebody/something")


@pytest.mark.parametrize("config_kind", [BertConfig, RobertaConfig])
def test_relative_positions_and_decoders_of_a_known_family_are_refused(config_kind: type) -> None:
    for kind in ("relative_key", "relative_key_query"):
        with pytest.raises(ModelError, match=f"{kind} positions"):
            check_architecture(config_kind(position_embedding_type=kind), "a model")
    with pytest.raises(ModelError, match=r"a model is a decoder .*is_decoder"):
        check_architecture(config_kind(is_decoder=True), "a model")
    check_architecture(config_kind(position_embedding_type="absolute", is_decoder=False), "a model")
    check_architecture(config_kind(), "a model")


def test_a_config_gives_the_positions_of_the_loaded_model(any_kind: tuple[str, int], tmp_path: Path) -> None:
    model = tiny_model(*any_kind)
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert num_usable_positions(SimpleNamespace(**config)) == architecture_of(model).num_positions == NUM_POSITIONS
    for key in ("max_position_embeddings", "pad_token_id"):
        is_needed = key == "max_position_embeddings" or any_kind[0] in ("roberta", "xlm-roberta", "camembert")
        fewer = SimpleNamespace(**{name: value for name, value in config.items() if name != key})
        assert num_usable_positions(fewer) == (None if is_needed else NUM_POSITIONS)


def test_a_head_is_known_by_the_names_of_its_weights(any_kind: tuple[str, int]) -> None:
    """Of a family whose head may be the word embedding alone, the names do not say it."""
    model = tiny_model(*any_kind)
    assert has_head(model.config, model.state_dict())
    encoder = [*model.base_model.state_dict()]
    encoder += [f"{model.base_model_prefix}.{name}" for name in encoder]
    assert has_head(model.config, encoder) == (any_kind[0] == "eurobert")
