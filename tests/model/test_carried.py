"""Weights and files outside the MLM model: checkpoints and exports keep them bit for bit, or a note names them."""

import json
import shutil
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
from longmlm.model.carried import save_model
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.release.export import TYPES, export
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot, write_checkpoint
from longmlm.training.run import RunRecord
from tests.support.extras import EXTRAS, PARTS, extra_weights, folder_with_heads, sentence_folder
from tests.support.tiny import LONG_POSITIONS, World, tiny_long, tiny_tokenizer

SHORT = ["It was the best of times", "the worst", "a"]
RECIPE = PretrainRecipe(num_steps=2, batch_tokens=100, learning_rate=1e-4)
WHOLE = {"albert": AlbertForPreTraining, "bert": BertForPreTraining}
TOKENIZER = tiny_tokenizer("bert", 0)
EXTRA_FILES = {
    "vocab.txt": "\n".join(sorted(TOKENIZER.get_vocab(), key=TOKENIZER.get_vocab().get)),
    "special_tokens_map.json": json.dumps({"mask_token": "[MASK]", "cls_token": "[CLS]"}),
    "added_tokens.json": json.dumps({"[MASK]": TOKENIZER.mask_token_id}),
    "LICENSE": "MIT\n",
    "additional_chat_templates/tool.jinja": "{{ messages }}",
}
ABOUT_LOADING = {
    "is_local": True,
    "local_files_only": True,
    "_commit_hash": "0" * 40,
    "cache_dir": "/deep/cache",
    "name_or_path": "/deep/base",
    "tokenizer_file": "/deep/tokenizer.json",
    "vocab_file": "/deep/vocab.txt",
    "special_tokens_map_file": "/deep/special_tokens_map.json",
    "token": "hf_planted",
    "proxies": {"https": "https://me:planted@host"},
}


def stages(base: Path, ground: Path) -> dict[str, Path]:
    """Returns the folders of a long model, a checkpoint of a run and an export, each made of the one before."""
    long = tiny_long(ground / "long", base)
    loaded = load_model(str(long))
    backend = PlainBackend.wrap(Accelerator(cpu=True), MlmObjective(loaded.model), RECIPE)
    snapshot = take_snapshot(backend, backend.accelerator)
    trained_on = TrainingRecord(row_length=LONG_POSITIONS, steps=0, tokens=0, rows_sha256="")
    record = RunRecord(loaded.tokenizer, "", RECIPE, Provenance(), trained_on, loaded.carried)
    checkpoint = write_checkpoint(ground / "run", TrainState(step=1), loaded.model, snapshot, record)
    export(load_model(str(checkpoint)), "fp32", ground / "export")
    return {"long": long, "checkpoint": checkpoint, "export": ground / "export"}


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sentence-transformers model with extra files, which no test may change, and what is made of it."""
    ground = tmp_path_factory.mktemp("sentence")
    base = sentence_folder(ground / "base")
    for name, text in EXTRA_FILES.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(text)
    return {"base": base, **stages(base, ground)}


def loaded_by(kind: type, folder: Path) -> tuple[PreTrainedModel, dict]:
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    return model.eval(), info


@pytest.mark.parametrize("family", EXTRAS)
def test_extra_weights_are_in_every_folder_and_in_the_models_that_use_them(
    family: str, sentence: dict[str, Path], tmp_path: Path
) -> None:
    """Of other families than BERT, in the long model."""
    folders, extra = [sentence[stage] for stage in ("long", "checkpoint", "export")], extra_weights(family)
    if family != "bert":
        folders = [tiny_long(tmp_path / "long", folder_with_heads(tmp_path / "base", family))]
    for folder in folders:
        stored = load_file(folder / "model.safetensors")
        assert all(torch.equal(stored[name], value) for name, value in extra.items())
        _, info = loaded_by(AutoModelForMaskedLM, folder)
        assert (info["missing_keys"], set(info["unexpected_keys"])) == (set(), set(extra))
        encoder, info = loaded_by(AutoModel, folder)
        assert not info["missing_keys"]
        for name in [name for name in extra if "pooler" in name]:
            assert torch.equal(encoder.state_dict()[name.partition(".")[2]], extra[name])
        if family in WHOLE:
            whole, info = loaded_by(WHOLE[family], folder)
            assert not info["missing_keys"] and not info["unexpected_keys"]
            assert all(torch.equal(whole.state_dict()[name], value) for name, value in extra.items())
        carried = load_model(str(folder)).carried
        assert carried.parts == PARTS[family]
        assert carried.lines[0] == f"carried over untrained: {', '.join(PARTS[family])}"


def test_a_model_without_extras_carries_nothing(world: World) -> None:
    carried = load_model(str(world.base)).carried
    assert (carried.weights, carried.files, carried.lines) == ({}, {}, [])
    assert load_file(world.long / "model.safetensors").keys() == load_file(world.base / "model.safetensors").keys()


def test_export_rounds_them_like_the_trained_weights(sentence: dict[str, Path], tmp_path: Path) -> None:
    for weights, kind in TYPES.items():
        export(load_model(str(sentence["long"])), weights, tmp_path / weights)
        stored = load_file(tmp_path / weights / "model.safetensors")
        for name, value in extra_weights("bert").items():
            assert stored[name].dtype == kind and torch.equal(stored[name], value.to(kind))


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
    whole = BertForPreTraining.from_pretrained(base)
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    of_pickle = load_model(str(base)).carried.weights
    (base / "pytorch_model.bin").unlink()
    whole.save_pretrained(base, max_shard_size="20KB")
    assert len(list(base.glob("*.safetensors"))) > 3
    for carried in (of_pickle, load_model(str(base)).carried.weights):
        assert carried.keys() == extra.keys()
        assert all(torch.equal(carried[name], value) for name, value in extra.items())


def test_sentence_transformers_encodes_short_texts_as_before(sentence: dict[str, Path]) -> None:
    from sentence_transformers import SentenceTransformer

    original = SentenceTransformer(str(sentence["base"]), device="cpu")
    expected = original.encode(SHORT)
    assert expected.shape == (3, 8) and np.allclose(np.linalg.norm(expected, axis=1), 1)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    for stage in ("long", "checkpoint", "export"):
        model = SentenceTransformer(str(sentence[stage]), device="cpu")
        assert np.array_equal(model.encode(SHORT), expected)
        assert (original.max_seq_length, model.max_seq_length) == (12, LONG_POSITIONS)
        assert (model.prompts["query"], model.similarity_fn_name) == ("q ", "dot")
        long_text = " ".join(SHORT * 9)
        assert not np.allclose(model.encode(long_text), original.encode(long_text), atol=1e-3)


def test_files_of_a_sentence_transformer_are_carried_and_listed_in_manifests(sentence: dict[str, Path]) -> None:
    """The tokenizer is the same with older files of it beside it."""
    carried = {
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
        *EXTRA_FILES,
    }
    fingerprint, pickled = load_vocabulary(str(sentence["base"])).fingerprint, sentence["base"] / "2_Dense"
    expected = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    for stage in ("long", "checkpoint", "export"):
        folder = sentence[stage]
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert carried <= files and not [name for name in files if name.endswith(".bin")]
        assert all((folder / name).read_text() == text for name, text in EXTRA_FILES.items())
        if stage != "export":
            assert carried <= verify(folder)["files"].keys()
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == LONG_POSITIONS
        dense = load_file(folder / "2_Dense" / "model.safetensors")
        assert dense.keys() == expected.keys() and all(torch.equal(dense[name], expected[name]) for name in dense)
        assert load_vocabulary(str(folder)).fingerprint == fingerprint
        assert AutoTokenizer.from_pretrained(folder)(SHORT)["input_ids"] == TOKENIZER(SHORT)["input_ids"]


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
    spoil: Callable[[Path], None], reason: str, sentence: dict[str, Path], tmp_path: Path
) -> None:
    base = Path(shutil.copytree(sentence["base"], tmp_path / "base"))
    spoil(base)
    with pytest.raises(ModelError, match=reason):
        load_model(str(base))


@pytest.mark.parametrize("name", ["1_Pooling/config.json", "2_Dense/model.safetensors", "modules.json"])
def test_module_that_differs_from_the_manifest_or_is_missing_is_named(
    name: str, sentence: dict[str, Path], tmp_path: Path
) -> None:
    long = Path(shutil.copytree(sentence["long"], tmp_path / "long"))
    assert name in json.loads((long / MANIFEST).read_text())["files"]
    content = (long / name).read_bytes()
    (long / name).write_bytes(content + b"\n" if name.endswith(".json") else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=rf"{name} is damaged: its content differs"):
        load_model(str(long))
    (long / name).unlink()
    with pytest.raises(ModelError, match=rf"{name} is missing, and manifest\.json names it"):
        load_model(str(long))


def test_how_a_tokenizer_was_loaded_is_not_saved(world: World, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(world.base, tmp_path / "copy"))
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps({**given, **ABOUT_LOADING}))
    for name in ("long", "checkpoint", "release"):  # each made of the one before
        loaded = load_model(str(folder))
        folder = tmp_path / name
        save_model(loaded.model, loaded.tokenizer, loaded.carried, folder)
        saved = json.loads((folder / path.name).read_text())
        assert not saved.keys() & ABOUT_LOADING.keys()
        kept = {key.replace("extra_special", "additional_special"): value for key, value in given.items()}
        assert saved.items() >= kept.items()  # by the names that transformers 4 knows as well
        texts = [file.read_text() for file in folder.glob("*.json")]
        assert not [text for text in texts if "/deep" in text or "planted" in text or str(tmp_path) in text]
