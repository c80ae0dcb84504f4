"""Releases from the command line to both hubs, and from there to processes that know only the usual libraries."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w
from huggingface_hub import ModelCard

from longmlm.folders import verify, write_json
from tests.support import hub as hf
from tests.support import modelscope_hub as ms
from tests.support.checkpoints import actual_accuracy, checkpoint
from tests.support.loopback import Fault
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import LONG_POSITIONS, World, tiny_evaluation, tiny_world

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 300.0
TOKEN, NAME = "planted_token0123456789", "owner/tiny-40"
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
FOLLOW = """
import longmlm.cli, longmlm.hubs.transfers, longmlm.release.follow
longmlm.release.follow.POLL_SECONDS, longmlm.hubs.transfers.WAITS_SECONDS = 0.1, ()
longmlm.cli.main()
"""
WATCH_TORCH = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.stderr.write(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
            os._exit(0)
sys.meta_path.insert(0, Watch())
from longmlm.cli import main
main()
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture
def settings(world: World, tmp_path: Path) -> Path:
    """A TOML file by which the trained model is released."""
    paths = {"model": world.trained, "rows": world.rows, "output": tmp_path / "tiny-40"}
    paths["evaluation"] = tiny_evaluation(world)
    card = {"title": "Tiny", "license": "apache-2.0", "data": ["demo novels"]}
    path = tmp_path / "release.toml"
    path.write_text(tomli_w.dumps({**{name: str(value) for name, value in paths.items()}, "card": card}))
    return path


@dataclass
class User:
    """A person with a hub, its token, and folders of their own."""

    environment: dict[str, str]
    folder: Path
    settings: Path

    def python(self, *arguments: str, has_longmlm: bool = False) -> subprocess.CompletedProcess:
        paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} if has_longmlm else {}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT if has_longmlm else self.folder,
            env=self.environment | paths,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )

    def release(self, *overrides: str) -> subprocess.CompletedProcess:
        return self.python("-m", "longmlm", "release", str(self.settings), *overrides, has_longmlm=True)

    def loads(self, revision: str) -> list[str]:
        """Returns type, length and `longmlm` is imported, of the model that a process without longmlm loads."""
        done = self.python("-c", LOAD, NAME, revision)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def runs(self, card: bytes) -> None:
        """Runs the card's first example."""
        code = re.findall(r"```python\n(.*?)```", card.decode(), re.DOTALL)[0]
        done = self.python("-c", code)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def user(settings: Path, tmp_path: Path, **environment: str) -> User:
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    switches = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    return User({**others, **switches, "HF_HOME": str(tmp_path / "hf"), **environment}, tmp_path, settings)


@pytest.fixture
def hub() -> Iterator[hf.Hub]:
    with hf.serve() as hub:
        hub.token = TOKEN
        yield hub


@pytest.fixture
def on_hf(hub: hf.Hub, settings: Path, tmp_path: Path) -> User:
    return user(settings, tmp_path, HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN, HF_HUB_OFFLINE="0")


def assert_without_token(user: User, *texts: str) -> None:
    assert not [text for text in texts if TOKEN in text]
    assert not [path for path in user.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.slow
def test_release_on_hugging_face_loads_by_its_card(hub: hf.Hub, on_hf: User) -> None:
    first = on_hf.release("--publish", f"hf:{NAME}", "--tag", "v1")
    assert first.returncode == 0, first.stderr
    repository, output = hub.repository(f"models/{NAME}"), on_hf.folder / "tiny-40"
    assert first.stdout.splitlines()[-1].endswith(f"{hub.endpoint}/{NAME}/tree/v1")
    assert repository.private
    assert repository.files().keys() - {".gitattributes"} == {path.name for path in output.iterdir()}
    assert verify(output)
    branches = dict(repository.branches)
    again = on_hf.release("--publish", f"hf:{NAME}", "--tag", "v1")
    assert (again.returncode, again.stdout.splitlines()) == (0, first.stdout.splitlines()[-1:])
    assert repository.branches == branches
    assert on_hf.loads("v1") == ["roberta", str(LONG_POSITIONS), "False"]
    on_hf.runs(repository.files()["README.md"])
    changed = on_hf.release("--publish", f"hf:{NAME}", "--card.title", "Another")
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 1)
    assert str(output) in changed.stderr
    assert_without_token(on_hf, first.stdout, first.stderr, again.stderr, changed.stderr, *hub.requests)


@pytest.mark.slow
def test_checkpoints_are_published_as_branches(hub: hf.Hub, on_hf: User, world: World) -> None:
    run = on_hf.folder / "run"
    for step, accuracy in {10: 0.5, 20: 12.0, 30: None, 50: 14.0}.items():
        checkpoint(run, step, world, accuracy)
    (run / "checkpoints" / "step-00000050" / "config.json").write_text("{}")
    done = on_hf.release("--publish", f"hf:{NAME}", "--model", str(run), "--checkpoints")
    assert done.returncode == 0, done.stderr
    for step in (10, 30, 50):
        assert f"step {step} is not published" in done.stdout
    repository = hub.repository(f"models/{NAME}")
    assert repository.branches.keys() == {"main", "step-20"}
    card = ModelCard(repository.files("step-20")["README.md"].decode())
    assert card.data.eval_results[0].metric_value == round(actual_accuracy(world), 2)
    assert f'model="{NAME}", revision="step-20")' in card.text
    assert {path.name for path in on_hf.folder.iterdir()} - {"hf"} == {"run", "tiny-40", "release.toml"}


@pytest.mark.slow
def test_release_and_checkpoints_on_modelscope_load_by_their_cards(
    settings: Path, tmp_path: Path, world: World
) -> None:
    run = tmp_path / "run"
    for step, accuracy in {10: 0.5, 20: 12.0}.items():
        checkpoint(run, step, world, accuracy)
    overrides = ["--publish", f"ms:{NAME}", "--tag", "v1", "--model", str(run), "--checkpoints"]
    with ms.serve() as hub:
        hub.token, home = TOKEN, tmp_path / "home"
        variables = {"MODELSCOPE_ENDPOINT": hub.endpoint, "MODELSCOPE_API_TOKEN": TOKEN, "HOME": str(home)}
        on_ms = user(settings, tmp_path, HF_HUB_OFFLINE="1", **variables)
        first = on_ms.release(*overrides)
        assert first.returncode == 0, first.stderr
        assert hub.repositories[NAME].revisions.keys() == {"master", "step-20", "v1"}
        assert hub.files(NAME) == hub.files(NAME, "v1")
        assert hub.files(NAME).keys() >= {path.name for path in (tmp_path / "tiny-40").iterdir()}
        hub.requests.clear()
        again = on_ms.release(*overrides)
        assert again.returncode == 0, again.stderr
        assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
        assert not [request for request in hub.requests if not request.startswith("GET ")]
        assert not (home / ".modelscope").exists()
        assert on_ms.loads("ms:v1") == ["roberta", str(LONG_POSITIONS), "False"]
        on_ms.runs(hub.files(NAME, "step-20")["README.md"])
        assert_without_token(on_ms, first.stdout, first.stderr, again.stdout, again.stderr, *hub.requests)


@pytest.mark.slow
def test_run_is_followed_to_its_end_and_a_failing_hub_is_waited_for(hub: hf.Hub, on_hf: User, world: World) -> None:
    run, repository = on_hf.folder / "run", hub.repository(f"models/{NAME}")
    repository.private = True
    repository.commit({})
    checkpoint(run, 10, world, 11.0)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    hub.faults = [Fault("commit", 503)]
    command = [sys.executable, "-c", FOLLOW, "release", str(on_hf.settings), "--publish", f"hf:{NAME}"]
    with subprocess.Popen(
        [*command, "--follow", str(run)],
        cwd=ROOT,
        env={**on_hf.environment, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        killer = threading.Timer(LONGEST_SECONDS, follower.kill)
        killer.start()
        wait_for(lambda: b"step 10" in repository.files().get("README.md", b""), follower)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        checkpoint(run, 20, world, 9.5)
        checkpoint(run, 30, world, 15.0)
        wait_for(lambda: b"step 30" in repository.files().get("README.md", b""), follower)
        shutil.copy(on_hf.settings, run / "metrics.jsonl")
        shutil.copy(on_hf.settings, run / "summary.json")
        output, errors = follower.communicate()
        killer.cancel()
    assert follower.returncode == 0, errors
    assert output.count("published: ") == 2
    assert "503" in errors
    assert "Traceback" not in errors


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Returns when the condition is met; fails if the process exits before."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def test_follower_hides_gpus_before_torch_can_find_them(tmp_path: Path) -> None:
    paths = {"model": "run", "rows": str(tmp_path), "output": "out", "publish": "folder:x", "follow": "run"}
    write_json(tmp_path / "manifest.json", {**manifest_of(128), "files": FILES})
    settings = tmp_path / "release.toml"
    settings.write_text(tomli_w.dumps({**paths, "card": {"title": "t"}}))
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-c", WATCH_TORCH, "release", str(settings)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "''"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["--publish", "gh:owner/name"], "hf:OWNER/NAME"),
        (["--publish", "gs://bucket/name"], "gcsfs"),
        (["--publish", f"hf:{NAME}"], "HF_HUB_OFFLINE"),
    ],
)
def test_error_of_the_user_is_one_line_before_the_work(overrides: list[str], named: str, tmp_path: Path) -> None:
    settings = tmp_path / "release.toml"
    paths = {"model": "run", "rows": "rows", "output": str(tmp_path / "out")}
    settings.write_text(tomli_w.dumps({**paths, "card": {"title": "t"}}))
    done = user(settings, tmp_path, HF_HUB_OFFLINE="1").release(*overrides)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert named in done.stderr
    assert not (tmp_path / "out").exists()
