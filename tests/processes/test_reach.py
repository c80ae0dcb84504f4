"""Base models from ModelScope and through a mirror of the Hugging Face Hub, by the real clients, from local servers."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from longmlm.artifacts.provenance import ModelSource, read_provenance
from longmlm.hubs import transfers
from tests.support import hub as hf
from tests.support.commands import Command, command
from tests.support.hub import Hub
from tests.support.loopback import Fault
from tests.support.modelscope_hub import BRANCH
from tests.support.served import NAME, serve
from tests.support.tiny import PIPELINE, tiny_folder, tiny_project
from tests.support.training import SOURCES

__all__ = ["command"]
MS = f"ms:{NAME}"
SETTINGS = f"""{PIPELINE.replace('"base"', f'"{MS}"')}
[evaluate.recipe]
precision = "no"
held_out.max_rows = 8
[release]
recipe.allow_unrecovered = true
recipe.allow_worse_short_texts = true
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def modelscope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A site with one model, whose card names a licence; nothing else can be reached."""
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 0)
    monkeypatch.setattr(transfers, "WAITS_SECONDS", ())
    with serve("ms", tmp_path, monkeypatch) as served:
        card = {"README.md": b"---\nlicense: Apache License 2.0\n---\n"}
        served.repository().commit(files_of(tiny_folder(tmp_path / "model")) | card, BRANCH)
        yield served.server


def test_a_pipeline_starts_from_a_model_on_modelscope(
    modelscope: Hub,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Everything that takes a model's name does; later it is found in the cache."""
    tiny_project(tmp_path)
    shutil.rmtree(tmp_path / "base")
    (tmp_path / "mine.toml").write_text(SETTINGS, encoding="utf-8")
    command("init", "--model", MS, "--corpus", "text.jsonl", "--length", "40")
    assert f'model = "{MS}"' in capsys.readouterr().out
    command("plan", "mine.toml")
    command("run", "mine.toml")
    commit = modelscope.repository(f"models/{NAME}").branches[BRANCH]
    release = tmp_path / "out" / "release"
    assert read_provenance(release).extension.base == ModelSource(name=MS, revision=commit)
    card = (release / "README.md").read_text(encoding="utf-8")
    assert f"[{NAME}](https://modelscope.cn/models/{NAME}) on ModelScope (revision {commit})" in card
    data = ModelCard(card).data
    assert (data.base_model, data.license) == (None, "apache-2.0")
    assert {re.sub(r"\?.*", "", request) for request in modelscope.requests} <= {
        f"GET /api/v1/models/{NAME}{part}" for part in ("", "/repo/files", "/repo")
    } | {"GET /api/v1/repos/internalAccelerationInfo"}
    modelscope.faults = [Fault(".", 503, times=10**6)]
    shutil.rmtree(tmp_path / "out" / "evaluation")
    shutil.rmtree(release)
    command("run", "mine.toml")
    assert (release / "README.md").read_text(encoding="utf-8") == card


def longmlm(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a process that may use the network, with its own cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MODELSCOPE_"))}
    environment = {**kept, "PYTHONPATH": SOURCES, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", **variables}
    command = [sys.executable, "-m", "longmlm", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_mirror_is_used_in_place_of_the_hugging_face_hub(tmp_path: Path) -> None:
    model = files_of(tiny_folder(tmp_path / "model"))
    words = ("extend", "--base", NAME, "--recipe.num-positions", "40", "--output")
    with hf.serve() as mirror:
        commit = mirror.repository(f"models/{NAME}").commit(model)
        done = longmlm(tmp_path, *words, "long", HF_ENDPOINT=mirror.endpoint)
        assert done.returncode == 0, done.stderr
        assert any(request.endswith("/model.safetensors") for request in mirror.requests)
        endpoint = mirror.endpoint
    about = json.loads((tmp_path / "long" / "longmlm.json").read_text(encoding="utf-8"))
    assert (about["extension"]["base"]["name"], about["extension"]["base"]["revision"]) == (NAME, commit)
    assert endpoint not in json.dumps(about)
    done = longmlm(tmp_path, *words, "again", HF_ENDPOINT=endpoint)  # which no longer answers
    assert done.returncode == 0, done.stderr
    assert f"the hub does not answer: {NAME} is taken from the cache, at commit {commit}" in done.stdout
