"""A folder whose weights lie in several files: the same model for transformers, hubs and checksums."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.folders import MANIFEST, new_folder, read_manifest
from longmlm.hubs.models import weights_sha256
from longmlm.model.loading import load_model
from longmlm.release.export import export
from longmlm.release.proof import prove
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from tests.support.served import CARD, NAME, Served, content
from tests.support.tiny import World, held_out, prove_in_this_process

INDEX = "model.safetensors.index.json"
LOAD = """
import sys
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM
model, info = AutoModelForMaskedLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
save_file({name: tensor.contiguous() for name, tensor in model.named_parameters()}, sys.argv[2])
"""


@pytest.fixture
def sharded(world: World, tmp_path: Path) -> Path:
    """The trained model in files of 20 KB."""
    with new_folder(tmp_path / "sharded") as partial:
        export(load_model(str(world.trained)), "fp32", partial, "20KB")
        (partial / "README.md").write_text(CARD)
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
    (sharded / "README.md").unlink()
    assert prove(load_model(str(world.trained)), "fp32", held_out(world.rows), sharded).largest_difference <= 1e-4


def test_checksum_of_the_weights_is_that_of_all_shards(sharded: Path) -> None:
    before, last = weights_sha256(sharded), max(sharded.glob("*.safetensors"))
    weights = load_file(last)
    next(iter(weights.values())).add_(1e-3)
    save_file(weights, last, {"format": "pt"})
    assert weights_sha256(sharded) != before


@pytest.mark.parametrize("size", ["5", "5 GB", "0MB", "GB", "-1GB", "5gb", "1.5GB"])
def test_size_that_is_none_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="max_shard_size"):
        ReleaseConfig(
            model="m", rows="r", output="o", card=ReleaseCard(title="t"), recipe=ReleaseRecipe(max_shard_size=size)
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # what the client does to httpx2
def test_shards_are_published_and_load_from_the_hub(
    world: World, sharded: Path, served: Served, tmp_path: Path
) -> None:
    served.publish(sharded)
    assert served.files() == content(sharded)
    assert MANIFEST in served.files()
    client = {
        "HF_ENDPOINT": served.server.endpoint,
        "HF_TOKEN": served.token,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | client
    command = [sys.executable, "-I", "-c", LOAD, NAME, str(tmp_path / "loaded")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loaded, trained = load_file(tmp_path / "loaded"), dict(load_model(str(world.trained)).model.named_parameters())
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.items())
