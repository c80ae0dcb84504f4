"""Both fake hubs behind one interface, and a sealed folder like a release."""

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
    server: Any
    kinds: Mapping[str, str]
    token: str

    def publish(self, folder: Path, name: str = NAME, **changes: Any) -> str:
        """Publishes the folder and returns its address."""
        return publish(folder, replace(Target(self.name, name), **changes), "Release of tiny")

    def create_public(self) -> None:
        """Creates the repository."""
        if self.name == "ms":
            self.server.repositories[NAME] = ms.Repository(visibility=ms.PUBLIC)
        else:
            self.server.repository(f"models/{NAME}").commit({".gitattributes": b""})

    def is_private(self, name: str = NAME) -> bool:
        if self.name == "ms":
            return self.server.repositories[name].visibility == ms.PRIVATE
        return self.server.repository(f"models/{name}").private

    def files(self, revision: str | None = None) -> dict[str, bytes]:
        """Returns the files of the repository at a revision, without those that the hub adds."""
        if self.name == "ms":
            if NAME not in self.server.repositories:
                return {}
            files = self.server.files(NAME, revision or ms.BRANCH)
            return {path: content for path, content in files.items() if ms.FIRST.get(path) != content}
        files = self.server.repository(f"models/{NAME}").files(revision or hf.LATEST)
        return {path: content for path, content in files.items() if not path.startswith(".")}

    def count(self, kind: str) -> int:
        """Returns how many requests of a kind were made."""
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


def make(folder: Path, text: str = '{"a": 1}', weights: bytes = bytes(range(256)) * 1000) -> Path:
    """Writes a sealed folder with this config in place of an earlier one; returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        (partial / "README.md").write_text(CARD)
        (partial / "config.json").write_text(text)
        (partial / "model.safetensors").write_bytes(weights)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sent(server: Server, kind: str) -> list[str]:
    """Returns the requests that contain `kind`."""
    return [request for request in server.requests if kind in request]
