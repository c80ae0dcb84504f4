"""longmlm predict: the table of several models, and what is refused in one line before torch is imported."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModel, AutoTokenizer

from tests.support.families import NUM_POSITIONS, demo_texts
from tests.support.tiny import PIPELINE, World
from tests.support.training import SOURCES

TEXT = "It was a [MASK] day"
SCRIPT = "import sys, longmlm.cli\ntry:\n    longmlm.cli.main()\nfinally:\n    print(*sys.modules, file=sys.stdout)"


def test_models_stand_side_by_side(predicted, world: World, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{' '.join(demo_texts()[0].split()[:4])} <mask> day", encoding="utf-8")
    out = predicted(world.base, world.long, tmp_path / "text.txt", "--top-k", "2")
    lines = out.splitlines()
    assert lines[0].endswith("[MASK] day")
    assert re.fullmatch(r"\s+base\s+long", lines[2])
    assert [line.split()[0] for line in lines[4:6]] == ["1", "2"]
    assert all(line.count(" %") == 2 for line in lines[4:6])
    assert f"base reads {NUM_POSITIONS} of the " in out and "long reads" not in out


def test_a_pipeline_file_names_its_base_model_and_its_run(predicted, world: World, run_folder: Path) -> None:
    project = run_folder.parent
    shutil.copytree(world.base, project / "base")
    text = PIPELINE.replace('output = "out"', f'output = "{project}"')
    (project / "mine.toml").write_text(text, encoding="utf-8")
    out = predicted(project / "mine.toml", TEXT)
    assert re.search(r"\s+base\s+(run|step-00000001)\n", out)


def test_a_word_is_shown_with_its_rank(predicted, world: World) -> None:
    words = demo_texts()[0].split()[:5]
    word = max(words, key=len)
    out = predicted(world.long, " ".join(words), "--mask", word, "--top-k", "1")
    assert re.search(r" \(\d+ tokens, all masked\)\n", out)
    assert "token 1: " in out and (", rank " in out or "✓" in out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "no mask here"], "has no mask: write [MASK] or <mask>"),
        (["MODEL", "gone.txt"], "gone.txt: there is no such file"),
        (["MODEL", "model.safetensors"], "is not a text file in UTF-8"),
        (["MODEL", TEXT, "--top-k", "0"], "top_k must be at least 1"),
        (["MODEL", "a day", "--mask", "night"], "does not have the word 'night'"),
        (["MODEL", TEXT, "--mask", "day"], "already has a mask"),
        (["MODEL", TEXT, "--occurrence", "2"], "occurrence has no effect without mask"),
        (["MODEL", "MODEL", TEXT], "names one model twice"),
        (["MODEL"], "name a model and a text"),
        ([], "name a model and a text"),
        (["folder", TEXT], "has no config.json"),
        (["./gone", TEXT], "no such folder"),
        (["encoder", TEXT], "has no MLM head, so it predicts no tokens"),
        (["maskless", TEXT], "the tokenizer has no mask token"),
        (["MODEL", "- [MASK]"], "write a value that begins with - as --name=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line(refused, models: Path, arguments: list[str], message: str, monkeypatch) -> None:
    monkeypatch.chdir(models)
    assert message in refused(*("base" if one == "MODEL" else one for one in arguments))


@pytest.fixture(scope="session")
def models(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one without a head, one whose tokenizer has no mask, a folder that is none, and a binary file."""
    folder = tmp_path_factory.mktemp("models")
    base = Path(shutil.copytree(world.base, folder / "base"))
    AutoModel.from_pretrained(base).save_pretrained(folder / "encoder")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "encoder")
    maskless = Path(shutil.copytree(base, folder / "maskless"))
    for file in maskless.glob("*token*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("<mask>", "<other>"), encoding="utf-8")
    config = maskless / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mask_token": None}), encoding="utf-8")
    (folder / "folder").mkdir()
    shutil.copy(base / "model.safetensors", folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [["base", "no mask"], ["encoder", TEXT], ["maskless", TEXT], ["base", TEXT, "--top-k=0"], ["folder", TEXT]],
    ids=" ".join,
)
def test_it_is_refused_before_torch_is_imported(models: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, "predict", *arguments]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=models)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    imported = set(done.stdout.split())
    assert "longmlm.cli" in imported and not {"torch", "transformers", "accelerate"} & imported
