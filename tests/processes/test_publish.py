"""A release to a hub, as a user asks for it, and from there to anybody's transformers; a run, followed."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from longmlm.folders import verify
from tests.support.checkpoints import actual_accuracy, checkpoint
from tests.support.hub import Hub, serve
from tests.support.loopback import Fault
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World

ROOT = Path(__file__).parents[2]
TOKEN = "hf_planted0123456789"
NAME = "owner/tiny-40"
LOAD = """
import sys
from transformers import AutoModelForMaskedLM, AutoTokenizer
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], revision=sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], revision=sys.argv[2])
print(model.config.model_type, tokenizer.model_max_length, "longmlm" in sys.modules)
"""
Publish = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as hub:
        hub.token = TOKEN
        yield hub


def online(hub: Hub, ground: Path) -> dict[str, str]:
    """Returns the environment of a user of that hub."""
    client = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(ground / "hf")}
    switches = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**os.environ, **client, **switches, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@pytest.fixture
def publish(hub: Hub, settings: Path, tmp_path: Path) -> Publish:
    """Releases and publishes from the command line."""

    def run(*overrides: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "longmlm", "release", str(settings), "--publish", f"hf:{NAME}", *overrides]
        environment = online(hub, tmp_path)
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    return run


def loads(hub: Hub, ground: Path, revision: str) -> str:
    """Returns what a process that knows only transformers says of the model on the hub."""
    command = [sys.executable, "-c", LOAD, NAME, revision]
    environment = {name: value for name, value in online(hub, ground).items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ground, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_what_is_published_loads_in_any_process_by_what_the_card_says(
    hub: Hub, publish: Publish, tmp_path: Path, settings: Path
) -> None:
    first = publish("--tag", "v1")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == f"published: {hub.endpoint}/{NAME}/tree/v1"
    repository = hub.repository(f"models/{NAME}")
    assert repository.private
    output = tmp_path / "tiny-40"
    assert repository.files().keys() - {".gitattributes"} == {path.name for path in output.iterdir()}
    assert verify(output)
    before = dict(repository.branches)
    again = publish("--tag", "v1")
    assert (again.returncode, again.stdout.splitlines()) == (0, first.stdout.splitlines()[-1:])
    assert repository.branches == before
    for revision in ("main", "v1"):
        assert loads(hub, tmp_path, revision) == f"roberta {LONG_POSITIONS} False"
    card = repository.files()["README.md"].decode()
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    assert f'model="{NAME}"' in code
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=online(hub, tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip()
    changed = publish("--title", "Another")
    assert changed.returncode == 2
    assert "was not released from this model with these settings" in changed.stderr
    for text in (first.stdout, first.stderr, again.stdout, again.stderr, changed.stderr, *hub.requests):
        assert TOKEN not in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.slow
def test_checkpoints_become_branches_and_those_that_fail_stay_here(
    hub: Hub, publish: Publish, tmp_path: Path, world: World
) -> None:
    run = tmp_path / "run"
    for step, accuracy in {10: 0.5, 20: 12.0, 30: None, 40: 13.0, 50: 14.0}.items():
        checkpoint(run, step, world, accuracy)
    shutil.copy(world.trained / "model.safetensors", run / "checkpoints" / "step-00000050" / "model.safetensors")
    (run / "checkpoints" / "step-00000050" / "config.json").write_text("{}")
    done = publish("--model", str(run), "--checkpoints")
    assert done.returncode == 0, done.stderr
    assert "step 10 is not published: its 0.50 % is below base_cut 1.00 %" in done.stdout
    assert "step 30 is not published: it was not evaluated when it was saved" in done.stdout
    assert "step 50 is not published: " in done.stdout
    repository = hub.repository(f"models/{NAME}")
    assert repository.branches.keys() == {"main", "step-20", "step-40"}
    assert loads(hub, tmp_path, "step-20") == f"roberta {LONG_POSITIONS} False"
    card = ModelCard(repository.files("step-20")["README.md"].decode())
    assert card.data.eval_results[0].metric_value == round(actual_accuracy(world), 2)
    assert f'model="{NAME}", revision="step-20")' in card.text
    assert "Trained for 2.0 hours." in card.text
    assert "| masking.selected_fraction | 0.2 |" in card.text
    assert {path.name for path in tmp_path.iterdir()} == {"run", "tiny-40", "release.toml", "hf"}


@pytest.mark.slow
def test_run_is_followed_to_its_end_and_a_failing_hub_is_waited_for(
    hub: Hub, settings: Path, tmp_path: Path, world: World
) -> None:
    run, repository = tmp_path / "run", hub.repository(f"models/{NAME}")
    repository.private = True
    repository.commit({})
    checkpoint(run, 10, world, 11.0)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    hub.faults = [Fault("commit", 503)]
    script = (
        "import longmlm.cli as stage, longmlm.release.follow as follow, longmlm.hubs.huggingface as client\n"
        "follow.POLL_SECONDS, client.WAITS_SECONDS = 0.1, ()\nstage.main()"
    )
    command = [sys.executable, "-c", script, str(settings), "--publish", f"hf:{NAME}", "--follow", str(run)]
    with subprocess.Popen(
        command, cwd=ROOT, env=online(hub, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        wait_for(lambda: b"step 10" in repository.files().get("README.md", b""), follower)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        checkpoint(run, 20, world, 9.5)
        checkpoint(run, 30, world, 15.0)
        wait_for(lambda: b"step 30" in repository.files().get("README.md", b""), follower)
        (run / "metrics.jsonl").write_text("{}\n")
        (run / "summary.json").write_text("{}")
        said, warned = follower.communicate(timeout=60)
    assert follower.returncode == 0, warned
    assert said.count("published: ") == 2
    assert "step 10 is not published yet: the hub answers 503" in warned
    assert "Traceback" not in warned


def wait_for(met: Callable[[], bool], process: subprocess.Popen) -> None:
    """Returns when that is so; ends the process when it takes minutes."""
    deadline = time.monotonic() + 300
    while not met():
        if time.monotonic() > deadline:
            process.kill()
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


REFUSALS = {
    "no target": (["--publish", "owner/name"], "publish is no hf:OWNER/NAME"),
    "another hub": (["--publish", "gh:owner/name"], "publish is no hf:OWNER/NAME"),
    "branch of ModelScope": (["--publish", "ms:owner/name", "--revision", "x"], "set tag instead"),
    "storage without client": (["--publish", "gs://bucket/name"], "its client is not installed"),
    "follow without": (["--publish", "folder:out", "--tag", "v1"], "need publish on a hub"),
    "offline": (["--publish", f"hf:{NAME}"], "HF_HUB_OFFLINE is set"),
    "tag of what is followed": (["--publish", "ms:owner/name", "--follow", "run", "--tag", "x"], "leave checkpoints"),
    "public nowhere": (["--public"], "need publish"),
    "both": (["--publish", f"hf:{NAME}", "--pull-request", "--revision", "x"], "leave revision out"),
    "no run": (["--publish", "folder:out", "--follow", "nowhere"], "no such run folder"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_users_error_is_one_line(name: str, settings: Path, tmp_path: Path) -> None:
    overrides, message = REFUSALS[name]
    command = [sys.executable, "-m", "longmlm", "release", str(settings), *overrides]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert NUM_POSITIONS < LONG_POSITIONS
