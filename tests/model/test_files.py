"""Checks of a model's files: one that is cut short, altered, missing or outside the folder is named."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from longmlm.errors import ModelError
from longmlm.folders import MANIFEST
from longmlm.model.loading import load_model
from tests.support.tiny import World


@pytest.fixture
def whole(world: World, tmp_path: Path) -> Path:
    """A long model with its manifest, to damage."""
    copy = Path(shutil.copytree(world.long, tmp_path / "copy"))
    assert (copy / MANIFEST).is_file()
    load_model(str(copy))
    return copy


@pytest.fixture
def bare(whole: Path) -> Path:
    """The same without a manifest."""
    (whole / MANIFEST).unlink()
    return whole


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("spoil", [cut, flip])
def test_file_that_differs_from_the_manifest_is_named(whole: Path, name: str, spoil: Callable[[Path], None]) -> None:
    spoil(whole / name)
    with pytest.raises(ModelError, match=re.escape(f"{whole / name} is damaged")) as caught:
        load_model(str(whole))
    assert "\n" not in str(caught.value)


def test_missing_file_of_the_manifest_is_named(whole: Path) -> None:
    (whole / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is missing, and manifest\.json names it"):
        load_model(str(whole))


def test_file_changed_on_purpose_is_read_without_the_manifest(whole: Path) -> None:
    change_config(whole, hidden_dropout_prob=0.25)
    with pytest.raises(ModelError, match=r"config\.json is damaged: .* remove manifest\.json"):
        load_model(str(whole))
    (whole / MANIFEST).unlink()
    assert load_model(str(whole)).model.config.hidden_dropout_prob == 0.25


def test_files_that_are_not_read_and_manifests_of_other_tools_are_ignored(whole: Path) -> None:
    for name in ("README.md", "optimizer.pt"):
        (whole / name).write_text("mine")
    manifest = json.loads((whole / MANIFEST).read_text())
    more = {name: {"bytes": 1, "sha256": "0"} for name in ("README.md", "optimizer.pt", "onnx/model.json")}
    (whole / MANIFEST).write_text(json.dumps({"files": manifest["files"] | more}))
    load_model(str(whole))
    for content in ('{"files": ["config.json"]}', '["config.json"]', '{"files": {"config.json": "sha"}}', "{}"):
        (whole / MANIFEST).write_text(content)
        load_model(str(whole))
    (whole / MANIFEST).write_text("{")
    with pytest.raises(ModelError, match=r"manifest\.json is damaged"):
        load_model(str(whole))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_file_cut_short_is_named_without_a_manifest(bare: Path, name: str) -> None:
    cut(bare / name)
    with pytest.raises(ModelError, match=re.escape(f"{bare / name} is damaged")) as caught:
        load_model(str(bare))
    assert "\n" not in str(caught.value)


def test_git_lfs_pointer_is_named(bare: Path) -> None:
    (bare / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged .* git-lfs pointer"):
        load_model(str(bare))


def test_missing_shard_is_named(bare: Path) -> None:
    AutoModelForMaskedLM.from_pretrained(bare).save_pretrained(bare, max_shard_size="20KB")
    (bare / "model.safetensors").unlink()
    load_model(str(bare))
    shards = sorted(bare.glob("model-*.safetensors"))
    assert len(shards) > 2
    cut(shards[0])
    with pytest.raises(ModelError, match=re.escape(f"{shards[0]} is damaged")):
        load_model(str(bare))
    shards[0].unlink()
    with pytest.raises(ModelError, match=re.escape(f"{shards[0]} is missing, and model.safetensors.index.json names")):
        load_model(str(bare))


def test_safetensors_are_preferred_to_a_pickle(bare: Path) -> None:
    weights = load_file(bare / "model.safetensors")
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, bare / "pytorch_model.bin")
    loaded = load_model(str(bare))
    assert loaded.notes == ()
    assert torch.equal(loaded.model.state_dict()["lm_head.bias"], weights["lm_head.bias"])


def test_model_with_code_of_its_own_is_read_as_a_stock_one_if_that_takes_its_weights(bare: Path) -> None:
    change_config(bare, auto_map={"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"})
    (bare / "own.py").write_text("raise SystemExit('code was run')")
    loaded = load_model(str(bare))
    assert len(loaded.notes) == 1
    assert all(fact in loaded.notes[0] for fact in (str(bare), "not run", "stock roberta"))
    assert not hasattr(loaded.model.config, "auto_map")
    weights = load_file(bare / "model.safetensors")
    own = {"roberta.encoder.layer.0.gate.weight": torch.zeros(2), "roberta.pooler.dense.bias": torch.zeros(2)}
    save_file(weights | own, bare / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"roberta\.encoder\.layer\.0\.gate\.weight.* never run"):
        load_model(str(bare))
    change_config(bare, model_type="unheard-of")
    with pytest.raises(ModelError, match="code in a repository is never run"):
        load_model(str(bare))
