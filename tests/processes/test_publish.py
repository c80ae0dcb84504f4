"""Releases from the command line to both hubs, and from there to processes that know only the usual libraries."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from longmlm.folders import verify
from tests.support import hub as hf
from tests.support import modelscope_hub as ms
from tests.support.tiny import LONG_POSITIONS, World, tiny_evaluation

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
    assert_without_token(on_hf, first.stdout, first.stderr, again.stderr, *hub.requests)


@pytest.mark.slow
def test_release_on_modelscope_loads_by_its_card(settings: Path, tmp_path: Path) -> None:
    overrides = ["--publish", f"ms:{NAME}", "--tag", "v1"]
    with ms.serve() as hub:
        hub.token, home = TOKEN, tmp_path / "home"
        variables = {"MODELSCOPE_ENDPOINT": hub.endpoint, "MODELSCOPE_API_TOKEN": TOKEN, "HOME": str(home)}
        on_ms = user(settings, tmp_path, HF_HUB_OFFLINE="1", **variables)
        first = on_ms.release(*overrides)
        assert first.returncode == 0, first.stderr
        repository = hub.repository(f"models/{NAME}")
        assert repository.tags.keys() == {"v1"}
        assert repository.files("master") == repository.files("v1")
        assert repository.files("v1").keys() >= {path.name for path in (tmp_path / "tiny-40").iterdir()}
        hub.requests.clear()
        again = on_ms.release(*overrides)
        assert again.returncode == 0, again.stderr
        assert again.stdout.splitlines() == first.stdout.splitlines()[-1:]
        assert not [request for request in hub.requests if not request.startswith("GET ")]
        assert not (home / ".modelscope").exists()
        assert on_ms.loads("ms:v1") == ["roberta", str(LONG_POSITIONS), "False"]
        on_ms.runs(repository.files("v1")["README.md"])
        assert_without_token(on_ms, first.stdout, first.stderr, again.stdout, again.stderr, *hub.requests)
