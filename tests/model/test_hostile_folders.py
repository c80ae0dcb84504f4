"""Odd and hostile model folders: each loads as the model it is, or is refused in one line that names file and key."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.errors import ModelError
from longmlm.hubs.models import check_model
from longmlm.model.extension import write_extension
from longmlm.model.loading import CALL_OPTIONS, load_model
from tests.support.tiny import tiny_extension, tiny_folder

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
NESTED = "[" * 100_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "odd"))


def set_key(folder: Path, key: str, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {key: value}), encoding="utf-8")


@pytest.mark.parametrize("key", [*HARMLESS, *FOR_THE_CALLER])
def test_a_key_that_is_not_about_the_numbers_changes_none(base: Path, folder: Path, tmp_path: Path, key: str) -> None:
    set_key(folder, key, (HARMLESS | FOR_THE_CALLER)[key])
    loaded = load_model(str(folder))
    assert torch.equal(loaded.model(IDS).logits, load_model(str(base)).model(IDS).logits)
    assert [key in note for note in loaded.notes] == [True] * (key in FOR_THE_CALLER)
    write_extension(loaded, tiny_extension(folder), tmp_path / "long")
    assert load_model(str(tmp_path / "long")).notes == ()


def test_every_option_of_the_caller_is_tried() -> None:
    assert FOR_THE_CALLER.keys() == CALL_OPTIONS.keys()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("key", WRONG)
def test_a_key_that_describes_another_model_is_refused_in_a_line(folder: Path, key: str) -> None:
    set_key(folder, key, WRONG[key])
    with pytest.raises(ModelError) as error:
        load_model(str(folder))
    line = str(error.value)
    assert line.startswith(f"{folder}")
    assert "\n" not in line
    assert len(line) > len(str(folder)) + 40


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "modules.json"]
)
def test_json_nested_too_deep_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text(NESTED, encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{name}|its tokenizer") as error:
        load_model(str(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link to nothing"])
def test_what_is_no_file_is_refused_before_anything_is_read(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink()
    match kind:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("nothing.here")
    for read in (check_model, load_model):
        with pytest.raises(ModelError, match=f"{path} is {kind}"):
            read(str(folder))


def test_a_link_to_nothing_in_a_cache_does_not_matter_if_the_file_is_not_read(base: Path, tmp_path: Path) -> None:
    snapshot = Path(shutil.copytree(base, tmp_path / "models--owner--name" / "snapshots" / "c0ffee"))
    (snapshot / "pytorch_model.bin").symlink_to("../../blobs/not-downloaded")
    load_model(str(snapshot))


@pytest.mark.parametrize("name", ["a(b", "a b", "lm head.bias", "x" * 600, "weight..bias", "a/b", "湖\n"])
def test_a_weight_whose_name_cannot_be_saved_again_is_refused(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors names a weight .*: names consist of"):
        load_model(str(folder))


@pytest.mark.parametrize(
    "content",
    [[torch.zeros(2)], "text", {1: torch.zeros(2)}, {"a": 3}, {"a": [torch.zeros(1)]}, {"a": torch.eye(2).to_sparse()}],
    ids=["list", "string", "number as a name", "number", "list of tensors", "sparse tensor"],
)
def test_a_bin_file_that_holds_no_tensors_by_name_is_refused(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin holds"):
        load_model(str(folder))


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut short"])
def test_a_damaged_bin_file_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged"):
        load_model(str(folder))
