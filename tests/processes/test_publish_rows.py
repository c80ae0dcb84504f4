"""Rows from the command line to a hub, and from there to a run, an evaluation, a release and anybody's `datasets`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w

from longmlm.artifacts.rows import SPLITS
from longmlm.folders import verify
from tests.support.hub import Hub, serve
from tests.support.tiny import LONG_POSITIONS, World
from tests.support.training import ROOT, SOURCES

TOKEN, NAME = "hf_planted0123456789", "owner/tiny-rows"
Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as hub:
        hub.token = TOKEN
        yield hub


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment of a user of that hub."""
    client = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
    switches = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**os.environ, **client, **switches, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs a stage from the command line."""

    def command(stage: str, settings: dict[str, object], *overrides: str) -> subprocess.CompletedProcess:
        path = tmp_path / f"{stage}.toml"
        path.write_text(tomli_w.dumps(settings), encoding="utf-8")
        arguments = [sys.executable, "-m", "longmlm", stage, str(path), *overrides]
        places = {"PYTHONPATH": SOURCES}
        return subprocess.run(
            arguments, cwd=ROOT, env=environment | places, capture_output=True, text=True, check=False
        )

    return command


@pytest.fixture
def rows(world: World, tmp_path: Path) -> dict[str, object]:
    """The settings of rows to publish."""
    return {
        "output": str(tmp_path / "tiny-rows"),
        "card": {"license": "cc0-1.0"},
        "recipe": {
            "tokenizer": str(world.base),
            "row_length": LONG_POSITIONS,
            "held_out_fraction": 0.25,
            "slice_bytes": 20_000,
            "sources": [{"files": [str(world.rows.parent / "text.jsonl")]}],
        },
    }


@pytest.mark.slow
def test_published_rows_go_through_every_stage(
    hub: Hub, run: Run, rows: dict[str, object], world: World, tmp_path: Path, environment: dict[str, str]
) -> None:
    first = run("prepare", rows, "--publish", f"hf:{NAME}", "--tag", "v1")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == f"published: {hub.endpoint}/datasets/{NAME}/tree/v1"
    repository = hub.repository(f"datasets/{NAME}")
    before = dict(repository.branches)
    again = run("prepare", rows, "--publish", f"hf:{NAME}", "--tag", "v1")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert repository.branches == before

    code = re.findall(r"```python\n(.*?)```", repository.files()["README.md"].decode(), re.DOTALL)[0]
    report = json.loads((tmp_path / "tiny-rows" / "manifest.json").read_text())["report"]
    for split in SPLITS:
        script = code.replace('split="train"', f'split="{split}"') + 'print(len(rows), "longmlm" in sys.modules)'
        command = [sys.executable, "-c", f"import sys\n{script}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == f"{report[split]['rows']} False"

    pinned = f"hf:{NAME}@{before['main']}"
    recipe = {"num_steps": 2, "batch_tokens": 200, "learning_rate": 1e-4, "precision": "no"}
    settings = {"run": str(tmp_path / "run"), "rows": f"hf:{NAME}", "start": {"checkpoint": str(world.long)}}
    few = {"held_out": {"max_rows": 8}}
    done = run("pretrain", {**settings, "recipe": {**recipe, **few}, "runtime": {"num_threads": 1}})
    assert done.returncode == 0, done.stderr
    assert f'rows = "{pinned}"' in (tmp_path / "run" / "settings.toml").read_text()

    models = {"base": str(world.base), "long_before": str(world.long), "long_after": settings["run"]}
    output = tmp_path / "evaluation"
    done = run("evaluate", {**models, "recipe": few, "rows": f"hf:{NAME}@v1", "output": str(output)})
    assert done.returncode == 0, done.stderr
    assert pinned in (output / "evaluation.json").read_text()

    released = {"model": settings["run"], "rows": f"hf:{NAME}", "evaluation": str(output)}
    released |= {"card": {"title": "Tiny", "license": "mit"}, "recipe": {"allow_unrecovered": True}}
    released |= {"output": str(tmp_path / "tiny")}
    done = run("release", released)
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path / "tiny")
    provenance = (tmp_path / "tiny" / "longmlm.json").read_text()
    assert pinned in provenance
    assert str(tmp_path) not in provenance
    assert not [request for request in hub.requests if TOKEN in request]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
