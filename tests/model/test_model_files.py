"""Files of a model: damaged, hostile and odd ones are refused in one line that names them, or change no number."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from longmlm.errors import ModelError
from longmlm.folders import MANIFEST
from longmlm.hubs.models import check_model
from longmlm.model.extension import write_extension
from longmlm.model.loading import CALL_OPTIONS, load_encoder, load_model
from tests.support.tiny import World, tiny_extension

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
READ = (WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json")
IDS = torch.tensor([[5, 6, 7, 8, 9]])
HARMLESS = {  # keys without an effect on a masked language model
    "pruned_heads": {"0": [0]},
    "torch_dtype": "float16",
    "dtype": "bfloat16",
    "use_cache": True,
    "num_labels": 5,
    "id2label": {"0": "a"},
    "problem_type": "regression",
    "architectures": [1],
    "transformers_version": 5,
    "tokenizer_class": "Nope",
    "eos_token_id": None,
    "is_encoder_decoder": True,
    "gradient_checkpointing": True,
    "max_length": "x",
    "task_specific_params": {"a": 1},
    "_name_or_path": ["a"],
}
FOR_THE_CALLER = {
    "chunk_size_feed_forward": 3,
    "output_attentions": True,
    "output_hidden_states": True,
    "return_dict": False,
    "torchscript": True,
}
WRONG = {
    "pad_token_id": None,
    "is_decoder": True,
    "tie_word_embeddings": False,
    "vocab_size": "30",
    "hidden_size": None,
    "num_attention_heads": 0,
    "num_hidden_layers": -1,
    "layer_norm_eps": None,
    "hidden_act": "nonsense",
    "hidden_dropout_prob": 2.0,
    "max_position_embeddings": "512",
    "type_vocab_size": 0,
    "initializer_range": "a",
    "intermediate_size": 0,
    "model_type": "nope",
    "add_cross_attention": True,
    "position_embedding_type": "relative_key",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}


@pytest.fixture
def whole(world: World, tmp_path: Path) -> Path:
    """A long model with its manifest, to damage."""
    return Path(shutil.copytree(world.long, tmp_path / "whole"))


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """A model without a manifest, to damage."""
    return Path(shutil.copytree(world.base, tmp_path / "odd"))


def refused(folder: Path, reason: str) -> None:
    """Fails unless loading the model raises one line that matches."""
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("spoil", [cut, flip])
def test_file_that_differs_from_the_manifest_is_named(whole: Path, name: str, spoil: Callable[[Path], None]) -> None:
    spoil(whole / name)
    refused(whole, re.escape(f"{whole / name} is damaged"))


def test_a_missing_file_of_the_manifest_is_named_and_one_changed_on_purpose_is_read_without_it(whole: Path) -> None:
    (whole / "tokenizer_config.json").rename(whole / "aside")
    refused(whole, r"tokenizer_config\.json is missing, and manifest\.json names it")
    (whole / "aside").rename(whole / "tokenizer_config.json")
    change_json(whole / "config.json", hidden_dropout_prob=0.25)
    refused(whole, r"config\.json is damaged: .* remove manifest\.json")
    (whole / MANIFEST).unlink()
    assert load_model(str(whole)).model.config.hidden_dropout_prob == 0.25


def test_files_that_are_not_read_and_manifests_of_other_tools_are_ignored(whole: Path) -> None:
    for name in ("README.md", "optimizer.pt"):
        (whole / name).write_text("mine")
    manifest = json.loads((whole / MANIFEST).read_text())
    more = {name: {"bytes": 1, "sha256": "0"} for name in ("README.md", "optimizer.pt", "onnx/model.json")}
    contents = [json.dumps({"files": manifest["files"] | more}), '["config.json"]', '{"files": {"config.json": "sha"}}']
    for content in (*contents, '{"files": ["config.json"]}', "{}"):
        (whole / MANIFEST).write_text(content)
        load_model(str(whole))
    (whole / MANIFEST).write_text("{")
    refused(whole, r"manifest\.json is damaged")


@pytest.mark.parametrize("name", READ)
def test_file_cut_short_is_named_without_a_manifest(folder: Path, name: str) -> None:
    cut(folder / name)
    refused(folder, re.escape(f"{folder / name} is damaged"))
    if name == WEIGHTS:
        (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        refused(folder, r"model\.safetensors is damaged .* git-lfs pointer")


@pytest.mark.parametrize("name", [*READ[1:], "special_tokens_map.json", "modules.json"])
def test_json_that_is_a_list_or_nested_too_deep_is_refused(folder: Path, name: str) -> None:
    for content in ("[1, 2]", "[" * 100_000):
        (folder / name).write_text(content, encoding="utf-8")
        is_list_of_model = name in READ and content == "[1, 2]"
        refused(folder, re.escape(f"{folder / name} is damaged") if is_list_of_model else rf"{name}|its tokenizer")


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link to nothing"])
def test_what_is_no_file_is_refused_before_anything_is_read(folder: Path, kind: str) -> None:
    for name in READ:
        path = folder / name
        path.rename(folder / "aside")
        match kind:
            case "a folder":
                path.mkdir()
            case "a pipe":
                os.mkfifo(path)
            case _:
                path.symlink_to("nothing.here")
        refused(folder, f"{path} is {kind}")
        with pytest.raises(ModelError, match=f"{path} is {kind}"):
            check_model(str(folder))
        path.rmdir() if kind == "a folder" else path.unlink()
        (folder / "aside").rename(path)


def test_a_link_to_nothing_in_a_cache_does_not_matter_if_the_file_is_not_read(world: World, tmp_path: Path) -> None:
    snapshot = Path(shutil.copytree(world.base, tmp_path / "models--owner--name" / "snapshots" / "c0ffee"))
    (snapshot / PICKLE).symlink_to("../../blobs/not-downloaded")
    load_model(str(snapshot))


@pytest.mark.parametrize("key", HARMLESS | FOR_THE_CALLER)
def test_a_key_that_is_not_about_the_numbers_changes_none(world: World, folder: Path, key: str) -> None:
    change_json(folder / "config.json", **{key: (HARMLESS | FOR_THE_CALLER)[key]})
    loaded = load_model(str(folder))
    assert torch.equal(loaded.model(IDS).logits, load_model(str(world.base)).model(IDS).logits)
    assert [key in note for note in loaded.notes] == [True] * (key in FOR_THE_CALLER)


def test_keys_for_the_caller_are_not_in_the_long_model(folder: Path, tmp_path: Path) -> None:
    assert FOR_THE_CALLER.keys() == CALL_OPTIONS.keys()
    change_json(folder / "config.json", **HARMLESS, **FOR_THE_CALLER)
    write_extension(load_model(str(folder)), tiny_extension(folder), tmp_path / "long")
    assert load_model(str(tmp_path / "long")).notes == ()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("key", WRONG)
def test_a_key_that_describes_another_model_is_refused_in_a_line(folder: Path, key: str) -> None:
    change_json(folder / "config.json", **{key: WRONG[key]})
    refused(folder, rf"^{folder}.{{40}}")


def as_pickle(folder: Path, **more: object) -> dict[str, torch.Tensor]:
    """Replaces the folder's safetensors by a pytorch_model.bin, and returns the weights."""
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save({**weights, **more}, folder / PICKLE)
    return weights


def test_pickled_tensors_are_read_and_noted_unless_there_are_safetensors(folder: Path) -> None:
    weights = as_pickle(folder)
    loaded = load_model(str(folder))
    assert loaded.notes == (f"{folder} has no safetensors file: its pytorch_model.bin was read as tensors only",)
    of_task = load_encoder(str(folder), AutoModelForSequenceClassification, head_seed=0)
    assert of_task.notes == loaded.notes
    state = loaded.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    loaded = load_model(str(folder))
    assert loaded.notes == ()
    assert torch.equal(loaded.model.state_dict()["lm_head.bias"], weights["lm_head.bias"] + 1)


class Intruder:
    """What a pickle may hold: code that runs when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path, str]]:
        return Path.write_text, (self.trace, "I was here")


def test_pickled_code_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    as_pickle(folder, more=Intruder(tmp_path / "trace"))
    refused(folder, "holds more than tensors")
    assert not (tmp_path / "trace").exists()
    torch.load(folder / PICKLE, weights_only=False)
    assert (tmp_path / "trace").exists()


def test_a_pickle_that_is_damaged_or_holds_no_tensors_by_name_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    for content in (b"", b"garbage", b"PK\x03\x04 cut short", pickle.dumps({"a": 1}, protocol=2)):
        (folder / PICKLE).write_bytes(content)
        refused(folder, r"pytorch_model\.bin is damaged")
    zeros = torch.zeros(2)
    for content in ([zeros], "text", {1: zeros}, {"a": 3}, {"a": [zeros]}, {"a": torch.eye(2).to_sparse()}):
        torch.save(content, folder / PICKLE)
        refused(folder, r"pytorch_model\.bin holds")


@pytest.mark.parametrize("name", ["a(b", "a b", "x" * 600, "weight..bias", "a/b", "湖\n"])
def test_a_weight_whose_name_cannot_be_saved_again_is_refused(folder: Path, name: str) -> None:
    save_file(load_file(folder / WEIGHTS) | {name: torch.zeros(2)}, folder / WEIGHTS)
    refused(folder, rf"{folder} names a weight .*: names consist of")


def shard(folder: Path) -> Path:
    """Spreads the folder's weights over several files and returns their index."""
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / WEIGHTS).unlink()
    return folder / "model.safetensors.index.json"


def test_weights_in_several_files_are_one_model_and_a_missing_file_is_named(world: World, folder: Path) -> None:
    shard(folder)
    states = [load_model(str(one)).model.state_dict() for one in (world.base, folder)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    cut(shards[0])
    refused(folder, re.escape(f"{shards[0]} is damaged"))
    shards[0].unlink()
    refused(folder, re.escape(f"{shards[0]} is missing, and model.safetensors.index.json names"))


def test_a_damaged_index_and_one_that_leads_out_of_the_folder_are_refused(folder: Path) -> None:
    index = shard(folder)
    content = json.loads(index.read_text())
    for name in ("../elsewhere.safetensors", "/elsewhere.safetensors", "deeper/one.safetensors", 5):
        index.write_text(json.dumps({"weight_map": content["weight_map"] | {"lm_head.bias": name}}))
        refused(folder, f"names a file outside its folder, {name}")
    for damaged in ("{", "[]", "{}", '{"weight_map": 3}'):
        index.write_text(damaged)
        refused(folder, "is damaged")
