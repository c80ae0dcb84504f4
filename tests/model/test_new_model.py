"""Making an untrained model from a config.json."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import new_model
from longmlm.model.position_table import position_table_of, sinusoidal_table
from tests.support.families import SPECIAL_OF_OTHERS, VOCABULARY_SIZE, tiny_config, tiny_tokenizer

ARCHITECTURE = {
    "model_type": "roberta",
    "vocab_size": VOCABULARY_SIZE + 4,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
UNUSABLE = ("", "{", "[1]", '{"vocab_size": 300}', '{"model_type": "unheard-of"}')
IMPOSSIBLE = ({"num_attention_heads": 5}, {"hidden_size": "wide"}, {"model_type": "longformer"})


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a RoBERTa tokenizer, not with the padding id that the architecture names."""
    tiny_tokenizer("roberta", 3).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def written(tmp_path: Path, **values: object) -> str:
    path = tmp_path / "architecture.json"
    path.write_text(json.dumps(ARCHITECTURE | values))
    return str(path)


def test_new_model_has_the_sizes_of_its_config_and_the_special_ids_of_its_tokenizer(
    tokenizer: Path, tmp_path: Path
) -> None:
    """Its positions start as sinusoids of the deviation of other weights, which follow the seed."""
    path = written(tmp_path, initializer_range=0.05)
    loaded, again, other = (new_model(path, str(tokenizer), seed) for seed in (7, 7, 8))
    config, parts = loaded.model.config, architecture_of(loaded.model)
    assert (config.vocab_size, config.num_hidden_layers, config.intermediate_size) == (VOCABULARY_SIZE + 4, 3, 48)
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    assert [getattr(config, name) for name in names] == [getattr(loaded.tokenizer, name) for name in names]
    assert parts.position_offset == loaded.tokenizer.pad_token_id + 1
    assert parts.num_positions == 24 - parts.position_offset
    assert loaded.notes == ()
    tokens = torch.full((1, parts.num_positions), 20)
    assert loaded.model(input_ids=tokens).logits.shape == (1, parts.num_positions, VOCABULARY_SIZE + 4)
    table = position_table_of(loaded.model)
    assert torch.equal(table.usable_rows, sinusoidal_table(len(table.usable_rows), 32, 0.05))
    assert float(table.embeddings.word_embeddings.weight.detach().std()) == pytest.approx(0.05, rel=0.1)
    states = [one.model.state_dict() for one in (loaded, again, other)]
    matrices = [name for name, tensor in states[0].items() if tensor.ndim > 1 and "position" not in name]
    assert len(matrices) > 15
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not any(torch.equal(states[0][name], states[2][name]) for name in matrices)


@pytest.mark.parametrize("other", SPECIAL_OF_OTHERS, ids=[family for family, _ in SPECIAL_OF_OTHERS])
def test_new_model_of_a_family_without_a_table_is_as_transformers_makes_it(
    other: tuple[str, int], tmp_path: Path
) -> None:
    config = tiny_config(*other)
    config.to_json_file(tmp_path / "architecture.json")
    tiny_tokenizer(*other).save_pretrained(tmp_path / "tokenizer")
    made = new_model(str(tmp_path / "architecture.json"), str(tmp_path / "tokenizer"), seed=4).model.state_dict()
    torch.manual_seed(4)
    expected = AutoModelForMaskedLM.from_config(config).state_dict()
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in expected)


def test_vocabulary_smaller_than_the_tokenizers_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    """Its highest id counts, where ids have gaps."""
    new_model(written(tmp_path, vocab_size=VOCABULARY_SIZE), str(tokenizer), seed=0)
    with pytest.raises(ModelError, match=f"vocab_size = {VOCABULARY_SIZE - 1}, .* set it to {VOCABULARY_SIZE} or"):
        new_model(written(tmp_path, vocab_size=VOCABULARY_SIZE - 1), str(tokenizer), seed=0)
    path, highest = tokenizer / "tokenizer.json", VOCABULARY_SIZE + 9
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"]["far"] = highest
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=f"vocab_size = {highest}, .* token id {highest}: set it to {highest + 1}"):
        new_model(written(tmp_path, vocab_size=highest), str(tokenizer), seed=0)
    new_model(written(tmp_path, vocab_size=highest + 1), str(tokenizer), seed=0)


def test_files_that_describe_no_model_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "architecture.json"
    for content in (*UNUSABLE, *(json.dumps(ARCHITECTURE | values) for values in IMPOSSIBLE)):
        path.write_text(content)
        with pytest.raises(ModelError, match=str(path)):
            new_model(str(path), str(tokenizer), seed=0)
    for names in ((str(tmp_path / "absent.json"), str(tokenizer)), (written(tmp_path), str(tmp_path / "absent"))):
        with pytest.raises(ModelError, match="absent"):
            new_model(*names, seed=0)
