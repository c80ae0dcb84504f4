"""A release to ModelScope, as a user asks for it, and from there to a process that knows only its client."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.loopback import Fault
from tests.support.modelscope_hub import PRIVATE, ModelScope, serve
from tests.support.tiny import LONG_POSITIONS, World

ROOT = Path(__file__).parents[2]
TOKEN = "ms-planted0123456789"
NAME = "owner/tiny-40"
LOAD = """
import sys
from modelscope_hub import HubApi
from transformers import AutoModelForMaskedLM, AutoTokenizer
folder = HubApi().download_repo(sys.argv[1], "model", revision=sys.argv[2])
model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
print(model.config.model_type, tokenizer.model_max_length, "longmlm" in sys.modules)
"""
FOLLOW = """
import longmlm.release.follow, longmlm.hubs.modelscope, longmlm.cli
longmlm.release.follow.POLL_SECONDS, longmlm.hubs.modelscope.WAITS_SECONDS = 0.1, ()
longmlm.cli.main("release")
"""


@pytest.fixture
def hub() -> Iterator[ModelScope]:
    with serve() as hub:
        hub.token = TOKEN
        yield hub


@pytest.fixture
def python(hub: ModelScope, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python as a user of that hub does, with longmlm or without; the home folder is `home`."""
    client = {"MODELSCOPE_ENDPOINT": hub.endpoint, "MODELSCOPE_API_TOKEN": TOKEN, "HOME": str(tmp_path / "home")}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MODELSCOPE", "PYTHONPATH"))}
    environment = {**others, **client, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, knows_longmlm: bool = False) -> subprocess.CompletedProcess:
        known = environment | ({"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} if knows_longmlm else {})
        command, ground = [sys.executable, *arguments], ROOT if knows_longmlm else tmp_path
        return subprocess.run(command, cwd=ground, env=known, capture_output=True, text=True, check=False)

    return run


@pytest.mark.slow
def test_release_and_checkpoints_load_from_modelscope_by_the_code_of_their_cards(
    hub: ModelScope, python: Callable[..., subprocess.CompletedProcess], settings: Path, tmp_path: Path, world: World
) -> None:
    run = tmp_path / "run"
    checkpoint(run, 10, world, 0.5)
    checkpoint(run, 20, world, 12.0)
    asked = ["-m", "longmlm", "release", str(settings), "--publish", f"ms:{NAME}", "--tag", "v1"]
    asked += ["--model", str(run), "--checkpoints"]
    first = python(*asked, knows_longmlm=True)
    assert first.returncode == 0, first.stderr
    assert "step 10 is not published: its 0.50 % is below base_cut 1.00 %" in first.stdout
    assert first.stdout.splitlines()[-1] == f"published: {hub.endpoint}/models/{NAME} at v1"
    repository = hub.repositories[NAME]
    assert (repository.visibility, repository.license) == (PRIVATE, "Apache-2.0")
    assert repository.revisions.keys() == {"master", "step-20", "v1"}
    assert hub.files(NAME) == hub.files(NAME, "v1")
    assert hub.files(NAME).keys() >= {path.name for path in (tmp_path / "tiny-40").iterdir()}
    hub.requests.clear()
    again = python(*asked, knows_longmlm=True)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert not [request for request in hub.requests if not request.startswith("GET ")]
    assert not (tmp_path / "home" / ".modelscope").exists()
    loaded = python("-c", LOAD, NAME, "v1")
    assert loaded.stdout.split() == ["roberta", str(LONG_POSITIONS), "False"], loaded.stderr
    for revision in ("master", "step-20"):
        code = re.findall(r"```python\n(.*?)```", hub.files(NAME, revision)["README.md"].decode(), re.DOTALL)[0]
        assert NAME in code
        assert ("step-20" in code) == (revision == "step-20")
        done = python("-c", code)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    for text in (first.stdout, first.stderr, again.stdout, again.stderr, *hub.requests):
        assert TOKEN not in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.slow
def test_best_checkpoint_of_a_run_goes_to_modelscope_when_that_answers_again(
    hub: ModelScope, python: Callable[..., subprocess.CompletedProcess], settings: Path, tmp_path: Path, world: World
) -> None:
    run = tmp_path / "run"
    checkpoint(run, 10, world, 11.0)
    checkpoint(run, 20, world, 15.0)
    for name in ("metrics.jsonl", "summary.json"):
        (run / name).write_text("{}\n")
    asked = ["-c", FOLLOW, str(settings), "--publish", f"ms:{NAME}", "--follow", str(run)]
    hub.faults = [Fault("POST .*/commit/", 503)]
    failed = python(*asked, knows_longmlm=True)
    assert failed.returncode == 2
    assert "the hub answers 503 for owner/tiny-40" in failed.stderr
    assert "Traceback" not in failed.stderr
    done = python(*asked, knows_longmlm=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("published: ") == 1
    assert b"step 20" in hub.files(NAME)["README.md"]
