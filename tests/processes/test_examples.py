"""The examples run as they are, at a small size and offline, and what they leave is right."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.folders import verify
from longmlm.settings.masking import HeldOut, Masking
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, PretrainRuntime, Start
from tests.support.commands import Command, command
from tests.support.tiny import LONG_POSITIONS, World, demo_texts, tiny_folder
from tests.support.training import ROOT, SOURCES, training_lines

__all__ = ["command"]
EXAMPLES = ROOT / "examples"
DATATROVE = os.environ.get("DATATROVE_PYTHON", "")  # of an environment with datatrove[io,processing] and spacy
NOTEBOOK = EXAMPLES / "bert_at_1536_tokens.ipynb"
BUNDLED = ROOT / "src" / "longmlm" / "bundled"
RUN_CELLS = """
import json, os, sys
for sizes in sys.argv[2:]:
    names = {"__name__": "__main__"}
    os.environ |= {f"LONGMLM_{name}": value for name, value in json.loads(sizes).items()}
    for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""
SMALL = {
    "MODEL": str(BUNDLED / "roberta-mini"),
    "LENGTH": "256",
    "NUM_STEPS": "24",
    "ROWS_PER_STEP": "4",
    "LEARNING_RATE": "1e-3",
    "INITIALISATION": "hierarchical",
    "NUM_DOCUMENTS": "8",
    "HELD_OUT_ROWS": "12",
    "MINUTES": "0",
    "OUTPUT": "long",
}
FEW = {"NUM_STEPS": "0", "NUM_DOCUMENTS": "2", "HELD_OUT_ROWS": "2", "OUTPUT": "few"}
SETTINGS = """
[prepare.recipe]
held_out_fraction = 0.25
[extend.recipe.distillation]
num_tokens = 400
precision = "no"
[pretrain.recipe]
num_steps = 4
batch_tokens = 320
precision = "no"
held_out.max_rows = 8
[pretrain.runtime]
num_threads = 1
[evaluate.recipe]
precision = "no"
held_out.max_rows = 8
[release.recipe]
allow_unrecovered = true
[release.card]
license = "mit"
"""


def run(folder: Path, *words: str) -> str:
    """Runs Python in a folder with the environment of a user who works on 2 threads; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_notebook_is_stored_without_results() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells, keys = notebook["cells"], {"code": {"execution_count", "outputs"}, "markdown": set()}
    assert all(cell.keys() == {"cell_type", "id", "metadata", "source"} | keys[cell["cell_type"]] for cell in cells)
    assert all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell["id"]) for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells) > 10
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["execution_count"], cell["outputs"]) for cell in code] == [(None, [])] * len(code)
    assert set(re.findall(r'size\("(\w+)"', "".join(map(str, code)))) == SMALL.keys()


def test_the_notebook_trains_for_minutes_or_for_steps_and_saves_a_stock_model(tmp_path: Path) -> None:
    """First for as many steps as fit into no minute, then for the number of steps that is given."""
    printed = run(tmp_path, "-c", RUN_CELLS, str(NOTEBOOK), json.dumps(SMALL | FEW), json.dumps(SMALL))
    few, minutes, printed = printed.partition("10 steps of 4 rows fit into 0 minutes\n")
    assert few and minutes
    few, _, printed = printed.partition("documents to train on")
    assert "step 10: loss" in few
    (whole,) = re.findall(
        r"^whole row +([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+$", printed, re.MULTILINE
    )
    base_chunks, before, after = map(float, whole)
    assert before < after - 3 and before < base_chunks - 5
    assert len(re.findall(r"^block \d", printed, re.MULTILINE)) == 2
    (num_tokens,) = re.findall(r"in a text of (\d+) tokens: \[", printed)
    assert 128 < int(num_tokens) <= 256
    assert AutoTokenizer.from_pretrained(tmp_path / "long").model_max_length == 256
    model, info = AutoModel.from_pretrained(tmp_path / "long", output_loading_info=True)
    assert model.config.max_position_embeddings == 258
    assert all("pooler" in key for key in info["missing_keys"])


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    """A folder with a tiny base model, a corpus in two files, and settings."""
    tiny_folder(tmp_path / "base")
    texts = [*demo_texts(), demo_texts()[0], "Too short."]
    for number, part in enumerate((texts[::2], texts[1::2])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (tmp_path / f"part-{number}.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "small.toml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


def test_a_domain_corpus_becomes_a_release_whose_embeddings_are_means(
    domain: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script starts its commands as processes; here this one executes the stages."""
    spec = importlib.util.spec_from_file_location("domain_corpus", EXAMPLES / "domain_corpus.py")
    script, stages = importlib.util.module_from_spec(spec), []
    spec.loader.exec_module(script)
    as_process = script.longmlm

    def execute(stage: str, *words: str) -> str:
        if stage == "init":
            return as_process(stage, *words)
        stages.append(stage)
        command(stage, *words)
        return ""

    monkeypatch.setattr(script, "longmlm", execute)
    options = ["--model", "base", "--length", str(LONG_POSITIONS), "--output", "out/mine", "--settings", "small.toml"]
    for expected in (
        ["plan", "prepare", "extend", "pretrain", "evaluate", "release"],
        ["plan", "prepare", "pretrain", "evaluate"],  # the others are done
    ):
        stages.clear()
        monkeypatch.setattr(sys, "argv", ["domain_corpus.py", "part-*.jsonl", *options])
        script.main()
        assert stages == expected
    assert f"{len(demo_texts())} documents; 2 short ones and copies left out" in capsys.readouterr().out
    release = domain / "out" / "mine" / "release"
    assert verify(release) and read_provenance(release).extension.num_positions == LONG_POSITIONS
    assert read_evaluation(release.parent / "evaluation" / Evaluation.FILE).row_length == LONG_POSITIONS
    check_embeddings(domain, release)


@torch.no_grad()
def check_embeddings(folder: Path, release: Path) -> None:
    """Asserts that the script's vectors are those of each document alone, in order, also of cut and short ones."""
    texts = [*demo_texts()[:9], "A short text."]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "documents.jsonl").write_text(lines, encoding="utf-8")
    script = EXAMPLES / "embeddings.py"
    assert "import longmlm" not in script.read_text() and "from longmlm" not in script.read_text()
    printed = run(folder, str(script), str(release), "documents.jsonl", "vectors.npy")
    assert "9 documents are longer than the model reads" in printed
    vectors = np.load(folder / "vectors.npy")
    model, tokenizer = AutoModel.from_pretrained(release).eval(), AutoTokenizer.from_pretrained(release)
    for text, vector in zip(texts, vectors, strict=True):
        ids = tokenizer(text, truncation=True, return_tensors="pt")
        mean = model(**ids).last_hidden_state[0].mean(0)
        assert vector == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)
    similarities = vectors @ vectors.T - 2 * np.eye(len(texts))
    pair = sorted(np.unravel_index(similarities.argmax(), similarities.shape))
    assert f"documents {pair[0]} and {pair[1]}" in printed


def test_a_model_is_tuned_for_similarity(tmp_path: Path) -> None:
    script, base = EXAMPLES / "similarity.py", BUNDLED / "roberta-mini"
    assert "import longmlm" not in script.read_text() and "from longmlm" not in script.read_text()
    pairs = [
        {"text": f"The lake was {word}.", "text2": f"It was {word} there."} for word in ["calm", "cold", "deep", "wide"]
    ]
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs * 2)
    (tmp_path / "pairs.jsonl").write_text(lines, encoding="utf-8")
    run(tmp_path, str(script), str(base), "pairs.jsonl", "tuned", "--batch", "4")
    assert (tmp_path / "tuned" / "modules.json").is_file()
    before, after = (AutoModel.from_pretrained(folder).state_dict() for folder in (base, tmp_path / "tuned"))
    assert any(not torch.equal(value, after[name]) for name, value in before.items() if "pooler" not in name)


def test_the_trainer_of_transformers_makes_the_same_updates(
    world: World, train: Callable[[PretrainConfig], Path], tmp_path: Path
) -> None:
    """In fp32 and without dropout, over more than one pass over the rows."""
    num_steps, rows = 20, open_rows(world.rows, "train")
    config = PretrainConfig(
        run=str(tmp_path / "run"),
        rows=str(world.rows),
        start=Start(checkpoint=str(world.long)),
        recipe=PretrainRecipe(
            num_steps=num_steps,
            batch_tokens=round(64 * rows.row_length * rows.mean_fill),
            learning_rate=1e-3,
            warmup_steps=4,
            dropout=0.0,
            precision="no",
            masking=Masking(selected_fraction=0.3),
            held_out=HeldOut(max_rows=4),
        ),
        runtime=PretrainRuntime(
            num_threads=1, log_every_steps=1, evaluate_every_steps=num_steps, save_every_steps=num_steps
        ),
    )
    ours = training_lines(train(config))
    words = ["--steps", str(num_steps), "--rows-per-batch", "32", "--batches-per-step", "2", "--dropout", "0"]
    words += ["--learning-rate", "1e-3", "--warmup-steps", "4"]
    run(tmp_path, str(EXAMPLES / "trainer.py"), str(world.rows), str(world.long), "trained", *words)
    state = json.loads((tmp_path / "trained" / "trainer_state.json").read_text())
    theirs = [line for line in state["log_history"] if "loss" in line]
    assert num_steps * 64 > 1.2 * len(rows) and len(theirs) == len(ours) == num_steps
    figures = [(line.targets["mlm"].loss, line.gradient_norm, line.learning_rate) for line in ours]
    names = ("loss", "grad_norm", "learning_rate")
    for figure, name in zip(zip(*figures, strict=True), names, strict=True):
        assert [line[name] for line in theirs] == pytest.approx(figure, rel=2e-5), name
    assert ours[-1].targets["mlm"].loss < ours[0].targets["mlm"].loss - 0.5
    assert AutoTokenizer.from_pretrained(tmp_path / "trained" / "model").model_max_length == LONG_POSITIONS


def kept_by_datatrove(folder: Path, texts: list[str]) -> None:
    """Writes what datatrove 0.10.1 writes for these documents with examples/filter_with_datatrove.py."""
    about = {"file_path": "/data/corpus/0.jsonl"}
    lines = [{"text": text, "id": f"0.jsonl/{number}", "metadata": about} for number, text in enumerate(texts)]
    (folder / "filtered" / "kept").mkdir(parents=True)
    (folder / "filtered" / "kept" / "00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "runs_datatrove",
    [False, pytest.param(True, marks=pytest.mark.skipif(not DATATROVE, reason="DATATROVE_PYTHON names no Python"))],
)
def test_prepare_reads_what_is_left_by_filters_of_datatrove(tmp_path: Path, runs_datatrove: bool) -> None:
    """Without an environment that has datatrove, of files as it writes them."""
    tiny_folder(tmp_path / "base")
    texts = demo_texts()
    if runs_datatrove:
        (tmp_path / "corpus").mkdir()
        lines = [json.dumps({"text": text}) for text in [*texts, "Buy now. " * 200, "Home\nAbout\nLogin\n" * 30]]
        (tmp_path / "corpus" / "0.jsonl").write_text("\n".join(lines), encoding="utf-8")
        command = [DATATROVE, str(EXAMPLES / "filter_with_datatrove.py"), "corpus", "filtered"]
        subprocess.run(command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
        lines = [line for path in tmp_path.glob("filtered/dropped/*/*") for line in path.read_text().splitlines()]
        dropped = {line["text"]: line["metadata"]["filter_reason"] for line in map(json.loads, lines)}
        texts = [text for text in texts if text not in dropped]
        assert len(texts) + len(dropped) == len(demo_texts()) + 2 < 2 * len(texts)
    else:
        kept_by_datatrove(tmp_path, texts)
    source = Source(files=(str(tmp_path / "filtered" / "kept" / "*.jsonl"),))
    recipe = PrepareRecipe(
        tokenizer=str(tmp_path / "base"), row_length=64, sources=(source,), held_out_fraction=0.3, duplicates="near"
    )
    report = prepare_rows(recipe, load_vocabulary(recipe.tokenizer), tmp_path / "rows").report
    assert report.train.documents + report.held_out.documents == len(texts) and not report.set_aside
