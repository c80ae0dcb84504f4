"""Settings that cannot work and inputs that are damaged are refused before torch is imported; nothing is written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.folders import write_json
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import tiny_extension

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "src" / "longmlm" / "bundled"
MINI, TEXT = BUNDLED / "roberta-mini", BUNDLED / "text" / "demo.jsonl"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "HF_HUB_OFFLINE": "1"}
HEAVY = ("torch", "transformers", "datasets", "accelerate", "pandas", "matplotlib")
SCRIPT = """
import contextlib, io, json, sys
from longmlm.cli import main

heavy, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for command in commands:
    sys.argv, text, code = ["longmlm", *command.split()], io.StringIO(), 0
    try:
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(io.StringIO()):
            main()
    except SystemExit as stop:
        code = stop.code
    print(json.dumps([code, text.getvalue(), [name for name in heavy if name in sys.modules]]))
"""
EXTEND = "extend --output new --recipe.num-positions 1024"
PREPARE = "prepare --output new --recipe.row-length 128"
PRETRAIN = "pretrain --run new --recipe.num-steps 3 --recipe.batch-tokens 4096 --recipe.learning-rate 1e-4"
EVALUATE = "evaluate --output new"
RELEASE = "release --output new --card.title T"
PIPELINE = "--length 1024 --output new"
REJECTED = {  # command: what its error names
    f"{EXTEND} --base ./nope": "./nope",
    f"{EXTEND} --base no/pe": "no/pe",
    f"{EXTEND} --base other": "config.json",
    f"extend --output other --base {MINI} --recipe.num-positions 1024": "other",
    f"extend --output new --base {MINI} --recipe.add-tokens no.txt": "no.txt",
    f"{EXTEND} --base {MINI} --recipe.alpha 7": "alpha",
    **{f"extend --output new --base {MINI} --recipe.num-positions {n}": str(n) for n in (100, 128, 16385)},
    f"{EXTEND} --base gpt2": "gpt2 is a gpt2 model",
    f"{EXTEND} --base modernbert": "rotary",
    f"{EXTEND} --base deberta --recipe.attention-window 64": "relative positions",
    f"{EXTEND} --base bare": "model.safetensors",
    f"{EXTEND} --base untrained": "has not been trained",
    f"{PREPARE} --recipe.tokenizer ./nope --recipe.sources.0.files text.txt": "./nope",
    f"{PREPARE} --recipe.tokenizer {MINI} --recipe.sources.0.files no.txt": "no.txt",
    f"{PREPARE} --recipe.tokenizer {MINI} --recipe.sources.0.files text.txt --recipe.sources.0.language e1": "e1",
    f"{PREPARE} --recipe.tokenizer {MINI} --recipe.sources.0.files text.txt": "one document",
    f"{PRETRAIN} --rows nope --start.checkpoint {MINI}": "nope",
    f"{PRETRAIN} --rows other --start.checkpoint {MINI}": "other",
    f"{PRETRAIN} --rows empty-rows --start.checkpoint {MINI}": "empty-rows",
    f"{PRETRAIN} --rows long-rows --start.checkpoint {MINI}": "256",
    f"{PRETRAIN} --rows rows --start.checkpoint {MINI} --runtime.num-processes 2": "num_processes",
    f"{PRETRAIN} --rows rows --start.checkpoint bare": "model.safetensors",
    f"{PRETRAIN} --rows rows --start.checkpoint gpt2": "gpt2 is a gpt2 model",
    f"{PRETRAIN} --rows rows --start.checkpoint ./nope": "./nope",
    f"{PRETRAIN} --rows rows --start.architecture no.json --start.tokenizer {MINI}": "no.json",
    f"{PRETRAIN} --rows rows --start.architecture {MINI}/config.json --start.tokenizer ./nope": "./nope",
    f"{EVALUATE} --rows nope --base {MINI} --long-before {MINI}": "nope",
    f"{EVALUATE} --rows rows --base ./nope --long-before {MINI}": "./nope",
    f"{EVALUATE} --rows rows --base {MINI} --long-before ./nope": "./nope",
    f"{EVALUATE} --rows rows --base {MINI} --long-after ./nope": "./nope",
    f"{EVALUATE} --rows rows --base {MINI} --long-after {MINI} --run nope": "nope",
    f"{EVALUATE} --rows long-rows --base {MINI} --long-before {MINI}": "256",
    f"{EVALUATE} --rows long-rows --base {MINI} --long-after {MINI}": "256",
    f"evaluate --output other --rows rows --base {MINI} --long-before {MINI}": "other",
    f"{RELEASE} --model nope --rows rows": "nope",
    f"{RELEASE} --model {MINI} --rows nope": "nope",
    f"{RELEASE} --model {MINI}": "rows is missing",
    f"{RELEASE} --model {MINI} --rows rows --evaluation nope": "nope/evaluation.json",
    f"{RELEASE} --model {MINI} --rows rows --publish hf:owner/name": "HF_HUB_OFFLINE",
    f"{RELEASE} --model {MINI} --rows rows --publish gh:owner/name": "hf:OWNER/NAME",
    f"{RELEASE} --model {MINI} --rows rows --publish gs://bucket/name": "gcsfs",
    "checkpoints --run nope": "nope",
    "checkpoints --run nope --action export --output new": "nope",
    f"plan --model ./nope --corpus text.txt {PIPELINE}": "./nope",
    f"plan --model {MINI} --corpus no.txt {PIPELINE}": "no.txt",
    f"run --model ./nope --corpus text.txt {PIPELINE}": "./nope",
    f"run --model {MINI} --corpus no.txt {PIPELINE}": "no.txt",
    **{f"{command} --model {MINI} --corpus text.txt --length 100 --output new": "100" for command in ("plan", "run")},
    **{f"{command} --model {MINI} --corpus {TEXT} {PIPELINE} --no-extension": "128" for command in ("plan", "run")},
    **{f"{command} --model {MINI} --corpus text.txt {PIPELINE}": "one document" for command in ("plan", "run")},
    f"run --model {MINI} --corpus text.txt --length long --output new": "length",
    "compare arms.toml": "./nope",
    f"init --model {MINI} --corpus text.txt --length long": "length",
    f"init --model {MINI} --corpus text.txt --lenght 1024": "lenght",
    **{
        f"{command} unknown.toml": "lenght"
        for command in ("plan", "run", "compare", "prepare", "extend", "pretrain", "evaluate", "release", "checkpoints")
    },
    **{f"{command} empty.toml": "missing" for command in ("prepare", "extend", "pretrain", "evaluate", "release")},
    # Each command with each damaged input that it reads.
    **{f"{command} broken.toml": "broken.toml" for command in ("run", "plan", "compare", "prepare", "pretrain")},
    **{f"{command} binary.toml": "binary.toml" for command in ("run", "extend", "evaluate", "release", "checkpoints")},
    **{
        f"{command} --rows {rows}-rows {more}": f"{rows}-rows"
        for command, more in (
            (PRETRAIN, f"--start.checkpoint {MINI}"),
            (EVALUATE, f"--base {MINI} --long-after {MINI}"),
            (RELEASE, f"--model {MINI}"),
        )
        for rows in ("damaged", "earlier")
    },
}


def write_damaged_inputs(folder: Path) -> None:
    """Writes settings that are cut off or no text, and rows whose manifest is cut off or of an earlier format."""
    (folder / "broken.toml").write_text('model = "a"\nlength = [')
    (folder / "binary.toml").write_bytes(bytes(range(128, 256)))
    for name, text in (
        ("damaged-rows/manifest.json", "{"),
        ("earlier-rows/manifest.json", json.dumps({**manifest_of(128), "format": 0, "files": FILES})),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def times_of(folder: Path) -> dict[Path, int]:
    """Returns when each path was written, without the folder of a comparison, which it locks to check its trials."""
    own = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] != "compared")
    return {path: path.stat().st_mtime_ns for path in own}


@pytest.fixture(scope="module")
def rejections(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, list[str]]]:
    """Returns for each command its exit code, standard error, and the heavy packages that are imported by then."""
    folder = tmp_path_factory.mktemp("rejections")
    manifests = {
        "other": {"files": {}},
        "rows": {**manifest_of(128), "files": FILES},
        "long-rows": {**manifest_of(256), "files": FILES},
        "empty-rows": manifest_of(128),
    }
    for name, manifest in manifests.items():
        (folder / name).mkdir()
        write_json(folder / name / "manifest.json", manifest)
    for family in ("gpt2", "modernbert", "deberta"):
        (folder / family).mkdir()
        (folder / family / "model.safetensors").touch()
        write_json(folder / family / "config.json", {"model_type": family, "max_position_embeddings": 512})
    for name in ("bare", "untrained"):
        shutil.copytree(MINI, folder / name, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    (folder / "untrained" / "model.safetensors").touch()
    artifact.write(folder / "untrained" / "longmlm.json", Provenance(extension=tiny_extension(MINI, 128)))
    pipeline = 'corpus = ["text.txt"]\noutput = "new"\n'
    compared = pipeline.replace("new", "compared")
    texts = {
        "text.txt": "Some text.\n",
        "empty.toml": "",
        "unknown.toml": f'model = "{MINI}"\nlenght = 1024\n{pipeline}',
        "arms.toml": f'model = "./nope"\nlength = 1024\n{compared}[compare.arms.a]\n[compare.arms.b]\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    write_damaged_inputs(folder)
    before = times_of(folder)
    command = [sys.executable, "-c", SCRIPT, json.dumps(HEAVY), json.dumps(list(REJECTED))]
    process = subprocess.run(command, check=False, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert times_of(folder) == before
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_every_rejection_is_one_line_that_names_what_is_wrong(rejections: list[tuple[int, str, list[str]]]) -> None:
    for (command, named), (code, text, _) in zip(REJECTED.items(), rejections, strict=True):
        assert (code, text.count("\n"), text[:7]) == (2, 1, "error: "), command
        assert named in text, command


def test_no_rejection_waits_for_a_heavy_import(rejections: list[tuple[int, str, list[str]]]) -> None:
    imported = [heavy for _, _, heavy in rejections]
    assert imported == [[] for _ in REJECTED]
