"""A folder whose weights lie in several files: the same model for transformers, hubs and checksums."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.folders import new_folder, read_manifest
from longmlm.hubs.model_files import weights_sha256
from longmlm.model.loading import load_model
from longmlm.release.export import export
from longmlm.release.proof import prove
from tests.support.tiny import World, held_out, prove_in_this_process

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(world: World, tmp_path: Path) -> Path:
    """The trained model in files of 20 KB."""
    with new_folder(tmp_path / "sharded") as partial:
        export(load_model(str(world.trained)), "fp32", partial, "20KB")
    return tmp_path / "sharded"


def test_weights_are_divided_named_in_index_and_manifest_and_proved(
    world: World, sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove_in_this_process(monkeypatch)
    shards = {path.name for path in sharded.glob("*.safetensors")}
    assert len(shards) > 3
    assert max(path.stat().st_size for path in sharded.glob("*.safetensors")) < 60_000
    assert set(json.loads((sharded / INDEX).read_text())["weight_map"].values()) == shards
    assert shards | {INDEX} <= read_manifest(sharded)["files"].keys()
    trained, again = (load_model(str(folder)).model.state_dict() for folder in (world.trained, sharded))
    assert trained.keys() == again.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in trained.items())
    assert prove(load_model(str(world.trained)), "fp32", held_out(world.rows), sharded).largest_difference <= 1e-4


def test_checksum_of_the_weights_is_that_of_all_shards(sharded: Path) -> None:
    before, last = weights_sha256(sharded), max(sharded.glob("*.safetensors"))
    weights = load_file(last)
    next(iter(weights.values())).add_(1e-3)
    save_file(weights, last, {"format": "pt"})
    assert weights_sha256(sharded) != before
