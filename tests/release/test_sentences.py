"""Releases of sentence-transformers models: their modules, the library's own embeddings, and ONNX files of both."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from longmlm.errors import ReleaseError
from longmlm.model.loading import load_model
from longmlm.release.build import with_sentence_modules
from longmlm.release.export import export
from longmlm.release.onnx_graph import write_graphs
from longmlm.release.reload import ENCODER
from tests.support.extras import sentence_folder
from tests.support.tiny import LONG_POSITIONS, World, tiny_long

TEXTS = ["It was the best of times", "a"]


def onnx_outputs(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Returns the outputs of the encoder's ONNX file by their names."""
    inputs = dict(AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="np"))
    inputs.pop("token_type_ids", None)
    session = onnxruntime.InferenceSession(folder / ENCODER)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_any_model_becomes_one_that_pools_as_asked(world: World, tmp_path: Path, pooling: str) -> None:
    export(with_sentence_modules(load_model(str(world.trained)), pooling), "fp32", tmp_path / "out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    assert model.max_seq_length == LONG_POSITIONS
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(tmp_path / "out").eval()(**inputs).last_hidden_state[0]
    expected = hidden.mean(0) if pooling == "mean" else hidden[0]
    assert np.abs(model.encode(TEXTS[:1])[0] - expected.numpy()).max() < 1e-5
    settings = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert [name for name, value in settings.items() if value is True] == [
        f"pooling_mode_{pooling}_token{'s' * (pooling == 'mean')}"
    ]


def test_modules_of_the_base_model_are_not_replaced(tmp_path: Path) -> None:
    loaded = load_model(str(sentence_folder(tmp_path / "base")))
    with pytest.raises(ReleaseError, match="Pooling, Dense, Normalize"):
        with_sentence_modules(loaded, "mean")


@pytest.mark.slow
@pytest.mark.parametrize("modules", [("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")])
def test_sentence_embedding_of_the_onnx_file_is_that_of_the_library(tmp_path: Path, modules: tuple[str, ...]) -> None:
    long = tiny_long(tmp_path / "long", sentence_folder(tmp_path / "base", "roberta", modules))
    assert write_graphs(long) == []
    expected = SentenceTransformer(str(long), device="cpu").encode(TEXTS)
    assert np.abs(onnx_outputs(long, TEXTS)["sentence_embedding"] - expected).max() < 1e-4


@pytest.mark.slow
def test_modules_that_cannot_be_exported_are_named(tmp_path: Path) -> None:
    long = tiny_long(tmp_path / "long", sentence_folder(tmp_path / "base"))
    assert write_graphs(long) == [
        f"{ENCODER} has no sentence_embedding: Pooling and Dense and Normalize cannot be exported"
    ]
    assert onnx_outputs(long, TEXTS).keys() == {"last_hidden_state"}


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode": "mean", "include_prompt": True}, "mean"),  # sentence-transformers 6
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode": "lasttoken"}, None),
    ],
)
def test_pooling_is_read_from_older_and_newer_files(
    tmp_path: Path, settings: dict[str, object], pooling: str | None
) -> None:
    base = sentence_folder(tmp_path / "base", modules=("Transformer", "Pooling"))
    (base / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    embedding = load_model(str(base)).carried.embedding
    assert (embedding and embedding.pooling) == pooling
