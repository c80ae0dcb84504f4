"""Weight files: pickles are read as tensors only, shards are one model, and one hash covers the files read."""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from longmlm.errors import ModelError
from longmlm.hubs.models import model_sha256, weights_sha256
from longmlm.model.loading import load_model


class Intruder:
    """What a pickle may hold: code that runs when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path, str]]:
        return Path.write_text, (self.trace, "I was here")


def as_pickle(folder: Path, **more: object) -> None:
    """Replaces the folder's safetensors by a pytorch_model.bin."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, **more}, folder / "pytorch_model.bin")


def test_pickled_tensors_are_read_and_noted(base: Path, copy: Path) -> None:
    as_pickle(copy)
    loaded = load_model(str(copy))
    assert loaded.notes == (f"{copy} has no safetensors file: its pytorch_model.bin was read as tensors only",)
    assert load_model(str(copy), auto_class=AutoModelForSequenceClassification).notes == loaded.notes
    states = [load_model(str(base)).model.state_dict(), loaded.model.state_dict()]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_pickled_code_is_refused_and_not_run(copy: Path, tmp_path: Path) -> None:
    as_pickle(copy, more=Intruder(tmp_path / "trace"))
    with pytest.raises(ModelError, match="holds more than tensors"):
        load_model(str(copy))
    assert not (tmp_path / "trace").exists()
    torch.load(copy / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "trace").exists()


def test_damaged_pickle_is_refused(copy: Path) -> None:
    as_pickle(copy)
    for content in (b"", b"no pickle", pickle.dumps({"a": 1}, protocol=2)):
        (copy / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ModelError, match=str(copy)):
            load_model(str(copy))


def shard(folder: Path) -> Path:
    """Spreads the folder's weights over several files and returns their index."""
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder / "model.safetensors.index.json"


def test_weights_in_several_files_are_one_model(base: Path, copy: Path) -> None:
    shard(copy)
    states = [load_model(str(folder)).model.state_dict() for folder in (base, copy)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    before = weights_sha256(copy)
    last = max(copy.glob("model-*.safetensors"))
    save_file({name: tensor + 1 for name, tensor in load_file(last).items()}, last, {"format": "pt"})
    assert weights_sha256(copy) != before


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/elsewhere.safetensors", "deeper/one.safetensors", 5])
def test_index_that_leads_out_of_the_folder_is_refused(copy: Path, name: object) -> None:
    index = shard(copy)
    content = json.loads(index.read_text())
    content["weight_map"][min(content["weight_map"])] = name
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=f"names a file outside its folder, {name}"):
        load_model(str(copy))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_damaged_index_is_refused(copy: Path, content: str) -> None:
    shard(copy).write_text(content)
    with pytest.raises(ModelError, match="is damaged"):
        load_model(str(copy))


def test_fingerprint_of_weights_follows_the_weights_alone(base: Path, copy: Path) -> None:
    before = weights_sha256(base)
    (copy / "README.md").write_text("a card")
    assert weights_sha256(copy) == before
    weights = load_file(copy / "model.safetensors")
    name = min(weights)
    weights[name] = weights[name] + 1e-3
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    assert weights_sha256(copy) != before


def test_fingerprint_covers_the_files_that_are_read(copy: Path) -> None:
    before = weights_sha256(copy)
    shutil.copy(copy / "model.safetensors", copy / "model.fp16.safetensors")
    (copy / "pytorch_model.bin").write_bytes(b"not read")
    (copy / "training_args.bin").write_bytes(b"not read")
    assert weights_sha256(copy) == before
    digest = hashlib.sha256((copy / "model.safetensors").read_bytes()).hexdigest()
    assert before == hashlib.sha256(digest.encode()).hexdigest()


def test_fingerprint_of_shards_covers_all_in_the_order_of_their_names(copy: Path) -> None:
    shard(copy)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(copy.glob("*.safetensors"))]
    assert weights_sha256(copy) == hashlib.sha256("".join(digests).encode()).hexdigest()


def test_folder_without_weights_has_no_fingerprint(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path, r"model\.safetensors"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(ModelError, match=problem):
            weights_sha256(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "bpe.codes"])
def test_the_hash_of_a_model_covers_architecture_and_tokenizer(copy: Path, name: str) -> None:
    (copy / "bpe.codes").write_text("a b\n")
    before = model_sha256(copy)
    (copy / "README.md").write_text("other words\n")
    assert model_sha256(copy) == before
    (copy / name).write_bytes((copy / name).read_bytes() + b"\n")
    assert model_sha256(copy) != before
