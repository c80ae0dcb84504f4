"""The examples run in an empty folder, at a small size, on the bundled model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import ROOT

EXAMPLES = ROOT / "examples"
MODEL = ROOT / "src" / "longmlm" / "bundled" / "roberta-mini"
SMALL = {"EXAMPLE_MODEL": str(MODEL), "EXAMPLE_LENGTH": "200", "EXAMPLE_STEPS": "6", "EXAMPLE_ROWS": "4"}


def run(folder: Path, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


@pytest.fixture
def documents(tmp_path: Path) -> list[str]:
    lines = (ROOT / "src/longmlm/bundled/text/demo.jsonl").read_text(encoding="utf-8").splitlines()[:24]
    (tmp_path / "corpus").mkdir()
    texts = [json.loads(line)["text"][:6000] for line in lines]
    (tmp_path / "corpus" / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for number, text in enumerate(texts[:3]):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    return [f"{number}.txt" for number in range(3)]


def test_the_notebook_runs_from_the_first_cell_to_the_last(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "bert_at_1536_tokens.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    (tmp_path / "notebook.py").write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    output = run(tmp_path, "notebook.py", **SMALL)
    accuracies = {name: float(value) for name, value in re.findall(r"^(.+?)\s+([\d.]+) % ±", output, re.MULTILINE)}
    assert list(accuracies) == ["base model, cut", "long, before", "long, after"]
    assert 25 < accuracies["base model, cut"] < 45
    assert accuracies["long, before"] < accuracies["base model, cut"] - 3
    assert "step 6/6" in output
    assert json.loads((tmp_path / "long-bert" / "config.json").read_text())["max_position_embeddings"] == 202


def test_a_domain_corpus_becomes_a_model_that_gives_embeddings(tmp_path: Path, documents: list[str]) -> None:
    overrides = ("--prepare.recipe.held-out-fraction", "0.3", "--pretrain.recipe.num-steps", "2")
    overrides += ("--pretrain.recipe.batch-tokens", "800", "--release.recipe.allow-unrecovered")
    overrides += ("--evaluate.recipe.held-out.max-rows", "8", "--pretrain.recipe.held-out.max-rows", "8")
    arguments = (str(MODEL), "corpus/*.jsonl", "--length", "200", "--output", "out/domain", "--", *overrides)
    output = run(tmp_path, str(EXAMPLES / "domain_corpus.py"), *arguments)
    assert "released: out/domain/release" in output
    assert (tmp_path / "out" / "domain" / "evaluation" / "index.html").is_file()
    table = run(tmp_path, str(EXAMPLES / "embeddings.py"), "out/domain/release", *documents).splitlines()
    numbers = [[float(value) for value in line.split()[1:]] for line in table]
    assert [numbers[row][row] for row in range(3)] == pytest.approx([1.0] * 3, abs=1e-3)
    assert all(numbers[row][column] == numbers[column][row] < 1 for row in range(3) for column in range(row))
