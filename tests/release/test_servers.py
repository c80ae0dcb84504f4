"""Released folders under the rules by which servers choose length and pooling: all usable positions, not one more."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from longmlm.model.loading import load_model
from longmlm.release.build import with_sentence_modules
from longmlm.release.export import export
from longmlm.release.reload import ENCODER
from tests.support.altered import alter, bake_length
from tests.support.extras import sentence_folder
from tests.support.servers import (
    VLLM_KEYS,
    fastembed_length,
    tei_graph,
    tei_length,
    tei_pooling,
    tokenizers_lengths,
    vllm_length,
    vllm_pooling,
)
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, tiny_folder, tiny_long

KINDS = [("roberta", 1), ("roberta", 3), ("xlm-roberta", 1), ("bert", 0), ("distilbert", 0)]
RELEASED = [*((*kind, None) for kind in KINDS), ("roberta", 1, "mean"), ("bert", 0, "cls")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, str | None], Path]:
    """Exports of each family as they are, and two as sentence-transformers models, one of either pooling."""
    ground, folders = tmp_path_factory.mktemp("served"), {}
    for family, pad, pooling in RELEASED:
        folder = ground / f"{family}-{pad}-{pooling}"
        long = load_model(str(tiny_long(folder / "long", tiny_folder(folder / "base", family, pad))))
        export(with_sentence_modules(long, pooling) if pooling else long, "fp32", folder / "released")
        folders[family, pad, pooling] = folder / "released"
    return folders


@pytest.mark.parametrize(("family", "pad", "pooling"), RELEASED)
def test_servers_read_all_positions_that_the_model_can_compute(
    released: dict, family: str, pad: int, pooling: str | None
) -> None:
    folder = released[family, pad, pooling]
    length = tei_length(folder)
    assert length == vllm_length(folder) == fastembed_length(folder) == LONG_POSITIONS
    if pooling:
        assert tei_pooling(folder) == vllm_pooling(folder) == pooling
    model = AutoModel.from_pretrained(folder).eval()
    tokens = torch.full((1, length + 1), 9)
    with torch.no_grad():
        assert model(input_ids=tokens[:, :-1]).last_hidden_state.isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=tokens)


def test_folder_without_modules_needs_a_pooling_on_the_command_line(released: dict) -> None:
    folder = released["roberta", 1, None]
    assert vllm_pooling(folder) is None
    with pytest.raises(KeyError):
        tei_pooling(folder)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_length_of_a_base_model_does_not_stay_in_any_file(family: str, tmp_path: Path) -> None:
    base = sentence_folder(tmp_path / "base", family, ("Transformer", "Pooling"))
    assert (tei_length(base), vllm_length(base)) == (12, 12)
    long = tiny_long(tmp_path / "long", base)
    export(load_model(str(long)), "fp32", tmp_path / "out")
    assert tei_length(tmp_path / "out") == vllm_length(tmp_path / "out") == LONG_POSITIONS
    (base / "sentence_bert_config.json").unlink()
    (base / "sentence_roberta_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    other = tiny_long(tmp_path / "other", base)
    assert not (other / "sentence_bert_config.json").exists()
    assert tei_length(other) == vllm_length(other) == LONG_POSITIONS


@pytest.mark.parametrize("kind", ["roberta", "bert", "xlm-roberta", "distilbert", "sentence encoder"])
def test_old_lengths_under_other_names_do_not_stay(kind: str, tmp_path: Path) -> None:
    modules = ("Transformer", "Pooling", "Dense", "Normalize")
    base, pad = tmp_path / "base", int("roberta" in kind)
    base = sentence_folder(base, "bert", modules) if kind == "sentence encoder" else tiny_folder(base, kind, pad)
    old = dict.fromkeys(VLLM_KEYS[1:], NUM_POSITIONS)
    alter(base, lambda config: config.update(old), "config.json")
    names = ("model_max_length", "max_length", "max_len", "max_len_single_sentence")
    alter(base, lambda config: config.update({**dict.fromkeys(names, 8), "stride": 0}), "tokenizer_config.json")
    alter(base, bake_length)
    if kind == "sentence encoder":
        nested = {"max_position_embeddings": NUM_POSITIONS, "transformer": {"max_seq_length": 8, "max_length": 8}}
        alter(base, lambda config: config.update(nested), "sentence_bert_config.json")
    assert (fastembed_length(base), tokenizers_lengths(base)) == (8, (8, 8))
    out = tmp_path / "out"
    export(load_model(str(tiny_long(tmp_path / "long", base))), "fp32", out)
    assert tei_length(out) == vllm_length(out) == fastembed_length(out) == LONG_POSITIONS
    short, long = tokenizers_lengths(out)
    assert short < 8 and long > 1000
    config = json.loads((out / "config.json").read_text())
    assert {config[key] for key in old if key in config} == {LONG_POSITIONS}
    if kind == "sentence encoder":
        settings = json.loads((out / "sentence_bert_config.json").read_text())
        lengths = {"max_seq_length": LONG_POSITIONS, "max_length": LONG_POSITIONS}
        assert (settings["max_seq_length"], settings["transformer"]) == (LONG_POSITIONS, lengths)
        assert "max_position_embeddings" not in settings


def test_rules_tell_a_wrong_length(released: dict, tmp_path: Path) -> None:
    """The faults of vllm-project/vllm#25865 and #19201: a length left behind, and a table with reserved rows."""
    folder = released["roberta", 1, None]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (tei_length(tmp_path), vllm_length(tmp_path)) == (LONG_POSITIONS, LONG_POSITIONS + 2)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    assert vllm_length(tmp_path) == 16
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    assert (tei_length(tmp_path), vllm_length(tmp_path)) == (12, 12)


def test_onnx_file_that_a_server_runs_is_the_encoder(tmp_path: Path) -> None:
    assert tei_graph(tmp_path) == tmp_path / ENCODER
