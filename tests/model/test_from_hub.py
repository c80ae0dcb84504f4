"""Names on a hub to models: what load_model makes of the files of one commit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ModelError
from longmlm.model.loading import load_model
from tests.support.hub import Hub
from tests.support.loopback import Fault
from tests.support.served import NAME
from tests.support.tiny import World

BIAS = "lm_head.bias"


def commit(hub: Hub, folder: Path, bias: float, **more: bytes) -> str:
    """Commits the model with this bias, and with more files, and returns the commit."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    weights = load_file(folder / "model.safetensors")
    biased = folder.parent / "biased.safetensors"
    save_file({**weights, BIAS: torch.full_like(weights[BIAS], bias)}, biased, {"format": "pt"})
    named = {name.replace("__", "."): content for name, content in more.items()}
    return hub.repository(f"models/{NAME}").commit(files | {"model.safetensors": biased.read_bytes()} | named)


def bias_of(loaded: Any) -> float:
    return loaded.model.lm_head.bias[0].item()


def test_model_and_vocabulary_are_those_of_the_pinned_commit(hub: Hub, world: World) -> None:
    first = commit(hub, world.base, 1.0)
    commit(hub, world.base, 2.0)
    loaded = load_model(NAME, first)
    assert (loaded.revision, bias_of(loaded), loaded.notes) == (first, 1.0, ())
    assert bias_of(load_model(NAME)) == 2.0
    assert load_vocabulary(f"{NAME}@{first}").size == load_vocabulary(str(world.base)).size
    hub.faults = [Fault(".", 503, times=10**6)]
    assert len(load_model(NAME).notes) == 1


@pytest.mark.parametrize("shard", ["../../../../secret.safetensors", "/etc/secret.safetensors"])
def test_index_that_names_a_file_outside_the_folder_is_refused(hub: Hub, world: World, shard: str) -> None:
    index = json.dumps({"weight_map": {BIAS: shard}}).encode()
    commit(hub, world.base, 1.0, model__safetensors__index__json=index)
    with pytest.raises(ModelError, match=f"model.safetensors.index.json.*{shard}"):
        load_model(NAME)
    assert not [request for request in hub.requests if "secret" in request]


def test_missing_model_is_named_for_weights_and_vocabulary(hub: Hub) -> None:
    with pytest.raises(ModelError, match=NAME):
        load_model(NAME)
    with pytest.raises(ModelError, match=NAME):
        load_vocabulary(NAME)


def test_path_of_the_cache_is_in_no_file_that_is_written(hub: Hub, world: World, tmp_path: Path) -> None:
    commit(hub, world.base, 1.0)
    loaded = load_model(NAME)
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    assert len(list((tmp_path / "saved").iterdir())) > 3
    for path in (tmp_path / "saved").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()
