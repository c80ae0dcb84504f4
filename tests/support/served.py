"""Both fake hubs behind one interface, as fixtures that a conftest imports, and a sealed folder like a release."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from huggingface_hub import set_client_factory
from huggingface_hub.utils import enable_progress_bars, logging
from huggingface_hub.utils._http import default_client_factory

from longmlm.folders import new_folder
from longmlm.hubs.publish import publish
from longmlm.settings.publishing import Target
from tests.support import hub as hf
from tests.support import modelscope_hub as ms
from tests.support.loopback import Server

NAME = "owner/name"
TOKEN = "hf_planted0123456789"
TOKENS = {"hf": TOKEN, "ms": "ms-planted0123456789"}
CARD = (
    "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n"
    '```python\npipeline("fill-mask", model="tiny")\n```\n'
)
REQUESTS = {
    "hf": {
        "look": r"GET /api/models/owner/name$",
        "create": "POST /api/repos/create",
        "card": "POST /api/validate-yaml",
        "preupload": "POST .*/preupload/",
        "batch": "POST .*/info/lfs/objects/batch",
        "object": "PUT /objects/",
        "commit": "POST .*/commit/main",
        "verify": "GET .*/tree/",
        "tag": "POST .*/tag/",
    },
    "ms": {
        "look": r"GET /api/v1/models/owner/name$",
        "create": "POST /api/v1/models$",
        "revisions": "GET .*/revisions$",
        "batch": "POST .*/info/lfs/objects/batch",
        "object": "PUT /objects/",
        "commit": "POST .*/commit/master",
        "verify": "GET .*/repo/files",
        "tag": "POST .*/repo/tag",
    },
}


@dataclass
class Served:
    """A hub that the client in this process uses, with a regular expression for each kind of request."""

    name: Literal["hf", "ms"]
    server: hf.Hub
    kinds: Mapping[str, str]
    token: str

    def publish(self, folder: Path, name: str = NAME, **changes: Any) -> str:
        """Publishes the folder and returns its address."""
        return publish(folder, replace(Target(self.name, name), **changes), "Release of tiny")

    @property
    def branch(self) -> str:
        return ms.BRANCH if self.name == "ms" else hf.LATEST

    def repository(self, name: str = NAME) -> hf.Repository:
        return self.server.repository(f"models/{name}")

    def files(self, revision: str | None = None) -> dict[str, bytes]:
        """Returns the files of the repository at a revision, without those that the hub adds."""
        files = self.repository().files(revision or self.branch)
        return {path: content for path, content in files.items() if hf.FIRST.get(path) != content}

    def count(self, kind: str) -> int:
        return sum(re.search(self.kinds[kind], request) is not None for request in self.server.requests)


@contextmanager
def serve(name: Literal["hf", "ms"], ground: Path, patch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Yields a hub with one valid token, which the client in this process has, along with empty folders."""
    with hf.serve() if name == "hf" else ms.serve() as server:
        server.token = TOKENS[name]
        if name == "hf":
            hf.point_client_at(server, ground / "hf", patch)
        else:
            about = {"HOME": str(ground / "home"), "MODELSCOPE_ENDPOINT": server.endpoint}
            for variable, value in {**about, "MODELSCOPE_API_TOKEN": server.token}.items():
                patch.setenv(variable, value)
            for variable in ("MODELSCOPE_HOME", "MODELSCOPE_CACHE"):
                patch.delenv(variable, raising=False)
        yield Served(name, server, REQUESTS[name], server.token)
        set_client_factory(default_client_factory)
        logging.set_verbosity_warning()
        enable_progress_bars()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses in seconds that retry and the clients asked for; none of them is waited for."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> Iterator[Served]:
    """The hub that the test's parameter names; by default the Hugging Face Hub."""
    with serve(getattr(request, "param", "hf"), tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def hub(served: Served) -> hf.Hub:
    return served.server


def make(folder: Path, text: str = '{"a": 1}', weights: bytes = bytes(range(256)) * 1000) -> Path:
    """Writes a sealed folder with this config in place of an earlier one; returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        (partial / "README.md").write_text(CARD)
        (partial / "config.json").write_text(text)
        (partial / "model.safetensors").write_bytes(weights)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sent(server: Server, kind: str) -> list[str]:
    """Returns the requests that contain `kind`."""
    return [request for request in server.requests if kind in request]
