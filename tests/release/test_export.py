"""A trained model to a stock folder: the same weights once, in the type asked for, and nothing else."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.model.loading import load_model
from longmlm.release.export import TYPES, export
from tests.support.tiny import LONG_POSITIONS, World, tiny_folder, tiny_long


@pytest.fixture(scope="module")
def longs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A long model of each family."""
    ground = tmp_path_factory.mktemp("bert")
    return {"roberta": world.trained, "bert": tiny_long(ground / "long", tiny_folder(ground / "base", "bert", 0))}


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_folder_holds_the_trained_weights_once_and_no_code(
    longs: dict[str, Path], family: str, weights: str, tmp_path: Path
) -> None:
    loaded, folder = load_model(str(longs[family])), tmp_path / "out"
    export(loaded, weights, folder)
    trained, stored = (load_file(path / "model.safetensors") for path in (longs[family], folder))
    assert stored.keys() == trained.keys() and len(stored) > 30
    assert not [name for name in stored if name.endswith("decoder.weight")]
    assert all(torch.equal(stored[name], tensor.to(TYPES[weights])) for name, tensor in trained.items())
    kept = loaded.model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in trained.items()), "the trained model stays as it is"
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == (family, str(TYPES[weights]).removeprefix("torch."))
    assert config["max_position_embeddings"] == LONG_POSITIONS + (2 if family == "roberta" else 0)
    assert "auto_map" not in config and "longmlm" not in json.dumps(config)
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == LONG_POSITIONS
