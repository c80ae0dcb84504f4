"""Weights of a base checkpoint outside its MLM model: checkpoints and exports hold them bit for bit, or name them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertForPreTraining,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForPreTraining,
    PreTrainedModel,
)

from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.artifacts.run import TrainState
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ModelError
from longmlm.folders import MANIFEST, verify
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.release.export import TYPES, export
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot, write_checkpoint
from longmlm.training.run import RunRecord
from tests.support.extras import EXTRAS, PARTS, extra_weights, folder_with_heads, sentence_folder
from tests.support.tiny import LONG_POSITIONS, tiny_folder, tiny_long, tiny_tokenizer

SHORT = ["It was the best of times", "the worst", "a"]
RECIPE = PretrainRecipe(num_steps=2, batch_tokens=100, learning_rate=1e-4)
WHOLE = {"albert": AlbertForPreTraining, "bert": BertForPreTraining}


def checkpoint_of(folder: Path, run: Path) -> Path:
    """Writes a checkpoint of a run that starts from the model in the folder, and returns its folder."""
    loaded = load_model(str(folder))
    backend = PlainBackend.wrap(Accelerator(cpu=True), MlmObjective(loaded.model), RECIPE)
    snapshot = take_snapshot(backend, backend.accelerator)
    trained_on = TrainingRecord(row_length=LONG_POSITIONS, steps=0, tokens=0, rows_sha256="")
    record = RunRecord(loaded.tokenizer, "", RECIPE, Provenance(), trained_on, loaded.carried)
    return write_checkpoint(run, TrainState(step=1), loaded.model, snapshot, record)


def stages(base: Path, ground: Path, weights: str = "fp32") -> dict[str, Path]:
    """Returns the folders of a long model, a checkpoint and an export, each made of the one before."""
    long = tiny_long(ground / "long", base)
    checkpoint = checkpoint_of(long, ground / "run")
    export(load_model(str(checkpoint)), weights, ground / "export")
    return {"long": long, "checkpoint": checkpoint, "export": ground / "export"}


def loaded_by(kind: type, folder: Path) -> tuple[PreTrainedModel, dict]:
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    return model.eval(), info


@pytest.mark.parametrize("family", EXTRAS)
def test_extra_weights_are_in_every_folder_and_in_the_models_that_use_them(family: str, tmp_path: Path) -> None:
    base, extra = folder_with_heads(tmp_path / "base", family), extra_weights(family)
    for folder in stages(base, tmp_path).values():
        stored = load_file(folder / "model.safetensors")
        assert all(torch.equal(stored[name], value) for name, value in extra.items())
        _, info = loaded_by(AutoModelForMaskedLM, folder)
        assert (info["missing_keys"], set(info["unexpected_keys"])) == (set(), set(extra))
        encoder, info = loaded_by(AutoModel, folder)
        pooled = [name for name in extra if "pooler" in name]
        assert not info["missing_keys"]
        for name in pooled:
            assert torch.equal(encoder.state_dict()[name.partition(".")[2]], extra[name])
        if family in WHOLE:
            whole, info = loaded_by(WHOLE[family], folder)
            assert not info["missing_keys"]
            assert not info["unexpected_keys"]
            assert all(torch.equal(whole.state_dict()[name], value) for name, value in extra.items())
        carried = load_model(str(folder)).carried
        assert carried.parts == PARTS[family]
        assert carried.lines[0] == f"carried over untrained: {', '.join(PARTS[family])}"


def test_model_without_extras_is_saved_as_before(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", "bert", 0)
    loaded = load_model(str(base))
    assert (loaded.carried.weights, loaded.carried.files, loaded.carried.lines) == ({}, {}, [])
    for folder in stages(base, tmp_path).values():
        names = set(load_file(folder / "model.safetensors"))
        assert names == set(load_file(base / "model.safetensors"))


@pytest.mark.parametrize("weights", TYPES)
def test_export_rounds_them_like_the_trained_weights(weights: str, tmp_path: Path) -> None:
    stored = load_file(
        stages(folder_with_heads(tmp_path / "b", "bert"), tmp_path, weights)["export"] / "model.safetensors"
    )
    for name, value in extra_weights("bert").items():
        assert stored[name].dtype == TYPES[weights]
        assert torch.equal(stored[name], value.to(TYPES[weights]))


def test_pooler_of_an_encoder_saved_by_itself_gets_the_name_that_models_with_a_head_use(tmp_path: Path) -> None:
    base = folder_with_heads(tmp_path / "base", "bert")
    encoder = AutoModel.from_pretrained(base)
    encoder.save_pretrained(base)
    assert "pooler.dense.weight" in load_file(base / "model.safetensors")
    loaded = load_model(str(base), new_head=True)
    assert set(loaded.carried.weights) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    export(loaded, "fp32", tmp_path / "out")
    again, info = loaded_by(AutoModel, tmp_path / "out")
    assert not info["missing_keys"]
    assert all(torch.equal(again.state_dict()[name], value) for name, value in encoder.state_dict().items())


def test_weights_of_a_pickle_and_of_shards_are_carried_too(tmp_path: Path) -> None:
    base, extra = folder_with_heads(tmp_path / "base", "bert"), extra_weights("bert")
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    whole = BertForPreTraining.from_pretrained(base)
    (base / "model.safetensors").unlink()
    carried = load_model(str(base)).carried.weights
    assert carried.keys() == extra.keys()
    assert all(torch.equal(carried[name], value) for name, value in extra.items())
    (base / "pytorch_model.bin").unlink()
    whole.save_pretrained(base, max_shard_size="20KB")
    assert len(list(base.glob("*.safetensors"))) > 3
    carried = load_model(str(base)).carried.weights
    assert all(torch.equal(carried[name], value) for name, value in extra.items())


def test_sentence_transformers_encodes_short_texts_as_before(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    base = sentence_folder(tmp_path / "base")
    folders = stages(base, tmp_path)
    original = SentenceTransformer(str(base), device="cpu")
    expected = original.encode(SHORT)
    assert expected.shape == (3, 8)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    for folder in folders.values():
        model = SentenceTransformer(str(folder), device="cpu")
        assert np.array_equal(model.encode(SHORT), expected)
        assert (original.max_seq_length, model.max_seq_length) == (12, LONG_POSITIONS)
        assert (model.prompts["query"], model.similarity_fn_name) == ("q ", "dot")
        long_text = " ".join(SHORT * 9)
        assert not np.allclose(model.encode(long_text), original.encode(long_text), atol=1e-3)


def test_files_of_a_sentence_transformer_are_carried_and_listed_in_manifests(tmp_path: Path) -> None:
    base = sentence_folder(tmp_path / "base")
    extras = {"vocab.txt": "[PAD]\n", "LICENSE": "MIT\n", "additional_chat_templates/tool.jinja": "{{ messages }}"}
    for name, text in extras.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(text)
    folders = stages(base, tmp_path)
    carried = {
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
        *extras,
    }
    for stage, folder in folders.items():
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert carried <= files
        assert not [name for name in files if name.endswith(".bin")]
        assert all((folder / name).read_text() == text for name, text in extras.items())
        if stage != "export":
            assert carried <= verify(folder)["files"].keys()
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == LONG_POSITIONS
    pickled = torch.load(base / "2_Dense" / "pytorch_model.bin", weights_only=True)
    dense = load_file(folders["export"] / "2_Dense" / "model.safetensors")
    assert dense.keys() == pickled.keys()
    assert all(torch.equal(dense[name], pickled[name]) for name in dense)


def test_what_is_not_carried_is_named_in_a_line(tmp_path: Path) -> None:
    base = folder_with_heads(tmp_path / "base", "bert")
    for name in ("tf_model.h5", "onnx/model.onnx", "onnx/model_O1.onnx", "own.py", "README.md", ".gitattributes"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("")
    carried = load_model(str(base)).carried
    assert carried.lines == ["carried over untrained: pooler, NSP head", "not carried over: onnx/, own.py, tf_model.h5"]
    long = tiny_long(tmp_path / "long", base)
    assert not (long / "own.py").exists()
    assert load_model(str(long)).carried.lines == carried.lines[:1]


def test_modules_that_are_code_are_left_out_with_all_that_names_them(tmp_path: Path) -> None:
    base = sentence_folder(tmp_path / "base")
    modules = json.loads((base / "modules.json").read_text())
    modules[2]["type"] = "own.Dense"
    (base / "modules.json").write_text(json.dumps(modules))
    carried = load_model(str(base)).carried
    assert not carried.files
    assert "not carried over: 1_Pooling/, 2_Dense/, config_sentence_transformers.json, modules.json" in carried.lines[1]


@pytest.mark.parametrize("legacy", ["vocab.txt", "special_tokens_map.json", "added_tokens.json"])
def test_tokenizer_is_the_same_with_its_older_files_beside_it(legacy: str, tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", "bert", 0)
    tokenizer = tiny_tokenizer("bert", 0)
    contents = {
        "vocab.txt": "\n".join(sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)),
        "special_tokens_map.json": json.dumps({"mask_token": "[MASK]", "cls_token": "[CLS]"}),
        "added_tokens.json": json.dumps({"[MASK]": tokenizer.mask_token_id}),
    }
    expected = load_vocabulary(str(base)).fingerprint
    (base / legacy).write_text(contents[legacy])
    for folder in stages(base, tmp_path).values():
        assert (folder / legacy).read_text() == contents[legacy]
        assert load_vocabulary(str(folder)).fingerprint == expected == load_vocabulary(str(base)).fingerprint
        assert (
            AutoTokenizer.from_pretrained(folder)("best of times")["input_ids"]
            == tokenizer("best of times")["input_ids"]
        )


def not_json(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text("{")


def list_of_strings(folder: Path) -> None:
    (folder / "modules.json").write_text('["a"]')


def outside(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules[:1], {**modules[1], "path": "../other"}]))


def code_in_weights(folder: Path) -> None:
    torch.save({"linear.weight": Path}, folder / "2_Dense" / "pytorch_model.bin")


def cut_weights(folder: Path) -> None:
    save_file({"a": torch.ones(9)}, folder / "2_Dense" / "model.safetensors")
    content = (folder / "2_Dense" / "model.safetensors").read_bytes()
    (folder / "2_Dense" / "model.safetensors").write_bytes(content[:40])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (not_json, r"1_Pooling/config\.json is damaged: it is not JSON"),
        (list_of_strings, r"modules\.json is damaged: it does not list"),
        (outside, r"modules\.json names a folder outside its own, \.\./other"),
        (code_in_weights, r"2_Dense/pytorch_model\.bin is damaged or holds more than tensors"),
        (cut_weights, r"2_Dense/model\.safetensors is damaged"),
    ],
)
def test_damaged_module_is_an_error_that_names_the_file(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    base = sentence_folder(tmp_path / "base")
    spoil(base)
    with pytest.raises(ModelError, match=reason):
        load_model(str(base))


@pytest.mark.parametrize("name", ["1_Pooling/config.json", "2_Dense/model.safetensors", "modules.json"])
def test_module_that_differs_from_the_manifest_or_is_missing_is_named(name: str, tmp_path: Path) -> None:
    long = tiny_long(tmp_path / "long", sentence_folder(tmp_path / "base"))
    load_model(str(long))
    assert name in json.loads((long / MANIFEST).read_text())["files"]
    content = (long / name).read_bytes()
    (long / name).write_bytes(content + b"\n" if name.endswith(".json") else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=rf"{name} is damaged: its content differs"):
        load_model(str(long))
    (long / name).unlink()
    with pytest.raises(ModelError, match=rf"{name} is missing, and manifest\.json names it"):
        load_model(str(long))
