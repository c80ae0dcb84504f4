"""A trained model to a stock folder: the same weights once, in the type asked for, loaded by plain transformers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.model.loading import load_model
from longmlm.release.export import TYPES, export
from tests.support.tiny import LONG_POSITIONS, World, tiny_folder, tiny_long

FAMILIES = ("roberta", "bert")
PLAIN = """
import json, sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer
said = {}
for folder in sys.argv[2:]:
    model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    tokens = load_file(sys.argv[1])["tokens"]
    with torch.no_grad():
        save_file({"logits": model.eval().float()(input_ids=tokens).logits}, folder + ".logits")
    weights = [model.get_output_embeddings().weight, model.get_input_embeddings().weight]
    lacks = [sorted(info[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")]
    said[folder] = {"lacks": lacks, "tied": weights[0] is weights[1]}
    said[folder]["longest"] = AutoTokenizer.from_pretrained(folder).model_max_length
print(json.dumps([said, "longmlm" in sys.modules]))
"""


@pytest.fixture(scope="module")
def longs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A long model of each family."""
    ground = tmp_path_factory.mktemp("bert")
    return {"roberta": world.trained, "bert": tiny_long(ground / "long", tiny_folder(ground / "base", "bert", 0))}


@pytest.fixture(scope="module")
def exports(longs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Exports of each family and type."""
    ground = tmp_path_factory.mktemp("exports")
    folders = {(family, weights): ground / f"{family}-{weights}" for family in FAMILIES for weights in TYPES}
    for (family, weights), folder in folders.items():
        export(load_model(str(longs[family])), weights, folder)
    return folders


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_the_trained_ones_each_once(
    longs: dict[str, Path], exports: dict[tuple[str, str], Path], family: str, weights: str
) -> None:
    trained, stored = (load_file(folder / "model.safetensors") for folder in (longs[family], exports[family, weights]))
    assert stored.keys() == trained.keys()
    assert len(stored) > 30
    assert not [name for name in stored if name.endswith("decoder.weight")]
    assert all(torch.equal(stored[name], tensor.to(TYPES[weights])) for name, tensor in trained.items())


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_folder_holds_what_transformers_loads_and_no_code(
    exports: dict[tuple[str, str], Path], family: str, weights: str
) -> None:
    folder = exports[family, weights]
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir() if path.suffix != ".logits"} == names
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == family
    assert config["dtype"] == str(TYPES[weights]).removeprefix("torch.")
    assert config["max_position_embeddings"] == LONG_POSITIONS + (2 if family == "roberta" else 0)
    assert "auto_map" not in config
    assert "longmlm" not in json.dumps(config)
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == LONG_POSITIONS


def test_any_process_loads_the_folders_with_plain_transformers(
    longs: dict[str, Path], exports: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    tokens = torch.randint(5, 290, (2, LONG_POSITIONS), generator=torch.Generator().manual_seed(0))
    save_file({"tokens": tokens}, tmp_path / "tokens")
    command = [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "tokens"), *(str(path) for path in exports.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, knows_longmlm = json.loads(done.stdout.splitlines()[-1])
    assert not knows_longmlm
    assert len(said) == len(FAMILIES) * len(TYPES)
    assert all(one == {"lacks": [[], [], []], "tied": True, "longest": LONG_POSITIONS} for one in said.values())
    for (family, weights), folder in exports.items():
        logits = load_file(f"{folder}.logits")["logits"]
        model = load_model(str(longs[family])).model.to(TYPES[weights]).float().eval()
        with torch.no_grad():
            expected = model(input_ids=tokens).logits
        assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
        assert expected.std() > 0.1


def test_trained_model_is_left_as_it_is(world: World, tmp_path: Path) -> None:
    trained = load_model(str(world.trained))
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    export(trained, "bf16", tmp_path / "out")
    after = trained.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
