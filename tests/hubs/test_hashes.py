"""Hashes of models: of the weight files that are read alone, and of weights, architecture and tokenizer."""

import hashlib
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from longmlm.errors import ModelError
from longmlm.hubs.model_files import model_sha256, weights_sha256
from tests.support.tiny import tiny_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "model")


def test_the_hash_of_weights_covers_the_files_that_are_read_in_the_order_of_their_names(folder: Path) -> None:
    before, path = weights_sha256(folder), folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert before == hashlib.sha256(digest.encode()).hexdigest()
    shutil.copy(path, folder / "model.fp16.safetensors")
    for name in ("pytorch_model.bin", "training_args.bin", "README.md"):
        (folder / name).write_bytes(b"not read")
    assert weights_sha256(folder) == before
    weights = load_file(path)
    path.unlink()
    (folder / "pytorch_model.bin").unlink()
    names = sorted(weights)
    for number in range(2):
        part = {name: weights[name] for name in names[number::2]}
        save_file(part, folder / f"model-0000{number + 1}-of-00002.safetensors")
    digests = [hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(folder.glob("model-*.safetensors"))]
    assert weights_sha256(folder) == hashlib.sha256("".join(digests).encode()).hexdigest()


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path, r"model\.safetensors"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(ModelError, match=problem):
            weights_sha256(folder)


def test_the_hash_of_a_model_covers_architecture_and_tokenizer(folder: Path) -> None:
    (folder / "bpe.codes").write_text("a b\n")
    hashes = [model_sha256(folder)]
    (folder / "README.md").write_text("other words\n")
    assert model_sha256(folder) == hashes[0]
    for name in ("config.json", "tokenizer.json", "bpe.codes"):
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
        hashes.append(model_sha256(folder))
    assert len(set(hashes)) == 4
