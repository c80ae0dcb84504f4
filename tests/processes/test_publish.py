"""Rows and releases from the command line to the hubs, and from there to processes without longmlm."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from longmlm.artifacts.rows import SPLITS
from longmlm.folders import verify
from tests.support import hub as hf
from tests.support import modelscope_hub as ms
from tests.support.tiny import LONG_POSITIONS, World, tiny_evaluation
from tests.support.training import ROOT

pytestmark = pytest.mark.slow
LONGEST_SECONDS = 300.0
TOKEN, NAME = "planted_token0123456789", "owner/tiny-40"
PUBLISH = ("--publish", f"hf:{NAME}", "--tag", "v1")
LOAD = """
import sys
from transformers import AutoModelForMaskedLM, AutoTokenizer
name, revision = sys.argv[1:]
if revision.startswith("ms:"):
    from modelscope_hub import HubApi
    name, revision = HubApi().download_repo(name, "model", revision=revision[3:]), None
model = AutoModelForMaskedLM.from_pretrained(name, revision=revision)
tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
print(model.config.model_type, tokenizer.model_max_length, "longmlm" in sys.modules)
"""


@dataclass
class User:
    """A person with a hub, its token, and a folder of their own."""

    environment: dict[str, str]
    folder: Path

    def python(self, *arguments: str, **variables: str) -> str:
        """Returns what a Python process prints that ends well; longmlm is not on its path."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr
        return done.stdout

    def longmlm(self, stage: str, settings: dict[str, object], *overrides: str) -> str:
        """Returns what a stage prints."""
        path = self.folder / f"{stage}.toml"
        path.write_text(tomli_w.dumps(settings), encoding="utf-8")
        return self.python("-m", "longmlm", stage, str(path), *overrides, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")

    def loads(self, revision: str) -> bool:
        """Returns whether a process without longmlm loads the model at its length."""
        return self.python("-c", LOAD, NAME, revision).split() == ["roberta", str(LONG_POSITIONS), "False"]

    def runs(self, code: str) -> list[str]:
        """Returns the lines that code prints, of which the last says whether longmlm was imported."""
        return self.python("-c", f'import sys\n{code}\nprint("longmlm" in sys.modules)').splitlines()

    def assert_token_in_no_file(self, requests: list[str]) -> None:
        assert not [text for text in requests if TOKEN in text]
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert files and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def example(card: bytes) -> str:
    """Returns the first example on a card."""
    return re.findall(r"```python\n(.*?)```", card.decode(), re.DOTALL)[0]


def user(folder: Path, **environment: str) -> User:
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    switches = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    return User({**others, **switches, "HF_HOME": str(folder / "hf"), **environment}, folder)


@pytest.fixture
def hub():
    with hf.serve() as hub:
        hub.token = TOKEN
        yield hub


@pytest.fixture
def on_hf(hub: hf.Hub, tmp_path: Path) -> User:
    return user(tmp_path, HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN, HF_HUB_OFFLINE="0")


@pytest.fixture
def release(world: World, tmp_path: Path) -> dict[str, object]:
    """The settings by which the trained model is released."""
    paths = {"model": world.trained, "rows": world.rows, "output": tmp_path / "tiny-40"}
    paths["evaluation"] = tiny_evaluation(world)
    card = {"title": "Tiny", "license": "apache-2.0", "data": ["demo novels"]}
    return {**{name: str(value) for name, value in paths.items()}, "card": card}


def test_release_on_hugging_face_loads_by_its_card(hub: hf.Hub, on_hf: User, release: dict[str, object]) -> None:
    first = on_hf.longmlm("release", release, *PUBLISH)
    repository, output = hub.repository(f"models/{NAME}"), on_hf.folder / "tiny-40"
    assert first.splitlines()[-1].endswith(f"{hub.endpoint}/{NAME}/tree/v1")
    assert repository.private
    assert repository.files().keys() - {".gitattributes"} == {path.name for path in output.iterdir()}
    assert verify(output)
    branches = dict(repository.branches)
    assert on_hf.longmlm("release", release, *PUBLISH).splitlines() == first.splitlines()[-1:]
    assert repository.branches == branches
    assert on_hf.loads("v1")
    assert len(on_hf.runs(example(repository.files()["README.md"]))) > 1
    on_hf.assert_token_in_no_file(hub.requests)


def test_release_on_modelscope_loads_by_its_card(release: dict[str, object], tmp_path: Path) -> None:
    publish = ("--publish", f"ms:{NAME}", "--tag", "v1")
    with ms.serve() as hub:
        hub.token, home = TOKEN, tmp_path / "home"
        variables = {"MODELSCOPE_ENDPOINT": hub.endpoint, "MODELSCOPE_API_TOKEN": TOKEN, "HOME": str(home)}
        on_ms = user(tmp_path, HF_HUB_OFFLINE="1", **variables)
        first = on_ms.longmlm("release", release, *publish)
        repository = hub.repository(f"models/{NAME}")
        assert repository.tags.keys() == {"v1"}
        assert repository.files("master") == repository.files("v1")
        assert repository.files("v1").keys() >= {path.name for path in (tmp_path / "tiny-40").iterdir()}
        hub.requests.clear()
        assert on_ms.longmlm("release", release, *publish).splitlines() == first.splitlines()[-1:]
        assert not [request for request in hub.requests if not request.startswith("GET ")]
        assert not (home / ".modelscope").exists()
        assert on_ms.loads("ms:v1")
        assert len(on_ms.runs(example(repository.files("v1")["README.md"]))) > 1
        on_ms.assert_token_in_no_file(hub.requests)


def test_published_rows_go_through_every_stage(hub: hf.Hub, on_hf: User, world: World, tmp_path: Path) -> None:
    rows: dict[str, object] = {
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
    first = on_hf.longmlm("prepare", rows, *PUBLISH)
    assert first.splitlines()[-1] == f"published: {hub.endpoint}/datasets/{NAME}/tree/v1"
    repository = hub.repository(f"datasets/{NAME}")
    before = dict(repository.branches)
    assert on_hf.longmlm("prepare", rows, *PUBLISH) == first
    assert repository.branches == before

    report = json.loads((tmp_path / "tiny-rows" / "manifest.json").read_text())["report"]
    code = example(repository.files()["README.md"])
    for split in SPLITS:
        printed = on_hf.runs(code.replace('split="train"', f'split="{split}"') + "print(len(rows))")
        assert printed[-2:] == [str(report[split]["rows"]), "False"]

    pinned = f"hf:{NAME}@{before['main']}"
    recipe = {"num_steps": 2, "batch_tokens": 200, "learning_rate": 1e-4, "precision": "no"}
    settings = {"run": str(tmp_path / "run"), "rows": f"hf:{NAME}", "start": {"checkpoint": str(world.long)}}
    few = {"held_out": {"max_rows": 8}}
    on_hf.longmlm("pretrain", {**settings, "recipe": {**recipe, **few}, "runtime": {"num_threads": 1}})
    assert f'rows = "{pinned}"' in (tmp_path / "run" / "settings.toml").read_text()

    models = {"base": str(world.base), "long_before": str(world.long), "long_after": settings["run"]}
    output = tmp_path / "evaluation"
    on_hf.longmlm("evaluate", {**models, "recipe": few, "rows": f"hf:{NAME}@v1", "output": str(output)})
    assert pinned in (output / "evaluation.json").read_text()

    released = {"model": settings["run"], "rows": f"hf:{NAME}", "evaluation": str(output)}
    released |= {"card": {"title": "Tiny", "license": "mit"}, "recipe": {"allow_unrecovered": True}}
    on_hf.longmlm("release", {**released, "output": str(tmp_path / "tiny")})
    assert verify(tmp_path / "tiny")
    provenance = (tmp_path / "tiny" / "longmlm.json").read_text()
    assert pinned in provenance
    assert str(tmp_path) not in provenance
    on_hf.assert_token_in_no_file(hub.requests)
