"""What is released, in every family and form, to every way of loading it, where longmlm is not installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.loading import load_model
from longmlm.release.export import export
from tests.support.tiny import tiny_folder, tiny_long

ROOT = Path(__file__).parents[2]
FORMS = {"fp32": ("fp32", None), "bf16": ("bf16", None), "sharded": ("fp32", "20KB")}
FOLDERS = [  # each form of a RoBERTa, and each family in one form: forms and families do not depend on each other
    *(("roberta", form) for form in FORMS),
    *((family, [*FORMS][number % len(FORMS)]) for number, family in enumerate(LEARNED_FAMILIES) if family != "roberta"),
]
LOADERS = ("masked_lm", "encoder", "sequence_classification", "fill_mask", "sentence_transformers")
PINNED = ("--constraint", str(ROOT / "constraints.txt"))
CLIENTS = {  # what is installed to load with, in a Python of its own
    "pinned": ("sentence-transformers==6.2.0", *PINNED, "torch", "transformers"),
    "transformers 4": ("sentence-transformers==5.1.2", "torch==2.13.0", "transformers==4.57.3"),
}
SPOILT = ("no length", "weight lost")
PADS = {"roberta": 1, "xlm-roberta": 1, "camembert": 1}


@pytest.fixture(scope="module", params=CLIENTS)
def clean(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with transformers and sentence-transformers, and nothing of this repository."""
    folder, packages = tmp_path_factory.mktemp("clean") / "venv", CLIENTS[request.param]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--no-deps", packages[0]], capture_output=True, check=False).returncode:
        pytest.skip(f"{packages[0]} cannot be fetched here")
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """A long model as it is released, of each family and in each form."""
    ground, made = tmp_path_factory.mktemp("matrix"), {}
    for family, form in FOLDERS:
        base = tiny_folder(ground / family / f"{form}-base", family, PADS.get(family, 0))
        long = load_model(str(tiny_long(ground / family / f"{form}-long", base)))
        weights, max_shard_size = FORMS[form]
        made[family, form] = ground / family / form
        export(long, weights, made[family, form], max_shard_size)
    assert {*dict(FOLDERS)} == {*LEARNED_FAMILIES} and {*dict(FOLDERS).values()} == {*FORMS}
    return made | {("roberta", spoilt): _spoilt(made["roberta", "fp32"], spoilt) for spoilt in SPOILT}


def _spoilt(whole: Path, spoilt: str) -> Path:
    folder = Path(shutil.copytree(whole, whole.with_name(spoilt)))
    if spoilt == "no length":
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 10**30}))
    else:
        weights = load_file(folder / "model.safetensors")
        del weights["roberta.encoder.layer.1.output.dense.bias"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def matrix(clean: Path, folders: dict[tuple[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What each loader says of each folder."""
    places = [str(folder) for folder in folders.values()]
    done = subprocess.run(
        [str(clean), "-I", str(ROOT / "tests" / "support" / "loaders.py"), *places],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return {cell: said[str(folder)] for cell, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=" ".join)
def test_every_loader_loads_a_released_folder(matrix: dict, folder: tuple[str, str]) -> None:
    assert matrix[folder] == dict.fromkeys(LOADERS, "ok")


@pytest.mark.slow
def test_no_loader_passes_a_folder_that_is_spoilt(matrix: dict) -> None:
    assert "ok" not in matrix["roberta", "no length"].values()
    lost = matrix["roberta", "weight lost"]
    assert all("output.dense.bias" in lost[loader] for loader in LOADERS if loader != "fill_mask")
    assert lost.keys() == {*LOADERS}
