"""Facts of a model are known without its weights, from every file that may store them, or are unknown."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from longmlm.errors import ModelError
from longmlm.model.facts import facts_of
from tests.support.tiny import NUM_POSITIONS, tiny_folder


@pytest.mark.parametrize("stored", ["safetensors", "shards", "bin"])
def test_a_head_is_known_from_the_names_of_the_weights(tmp_path: Path, stored: str) -> None:
    base = tiny_folder(tmp_path / "base")
    assert (facts_of(str(base)).has_head, facts_of(str(base)).num_positions) == (True, NUM_POSITIONS)
    encoder = AutoModel.from_pretrained(base)
    (base / "model.safetensors").unlink()
    if stored == "bin":
        torch.save(encoder.state_dict(), base / "pytorch_model.bin")
    else:
        encoder.save_pretrained(base, max_shard_size="40KB" if stored == "shards" else "1GB")
    assert len([*base.glob("*.safetensors")]) > 1 or stored != "shards"
    assert facts_of(str(base)).has_head is False


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"version https://git-lfs", b"PK\3\4" + bytes(40)])
def test_weights_that_are_not_known_are_left_to_loading(tmp_path: Path, name: str, content: bytes) -> None:
    base = tiny_folder(tmp_path / "base")
    assert facts_of(str(base)).weight_names == frozenset(load_file(base / "model.safetensors"))
    (base / "model.safetensors").unlink()
    (base / name).write_bytes(content)
    facts = facts_of(str(base))
    assert facts.weight_names is None and facts.has_head is None


def test_only_loading_tells_what_a_damaged_config_or_code_means(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base")
    for content in ("[", '{"model_type": "roberta", "auto_map": {}}'):
        (base / "config.json").write_text(content, encoding="utf-8")
        facts = facts_of(str(base))
        assert (facts.config, facts.num_positions, facts.has_head, facts.has_pair_head) == (None,) * 4
    (base / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(ModelError, match="base is a gpt2 model: only"):
        facts_of(str(base))
