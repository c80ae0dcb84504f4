"""A folder such as a release is, and what a hub holds of it."""

import shutil
from pathlib import Path

from longmlm.folders import new_folder
from longmlm.hubs.huggingface import Repository
from longmlm.hubs.publish import publish
from tests.support.hub import Hub

TOKEN = "hf_planted0123456789"
NAME = "owner/name"
PLACE = Repository(NAME)
CARD = (
    "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n"
    '```python\npipeline("fill-mask", model="tiny")\n```\n'
)


def make(folder: Path, text: str = '{"a": 1}', weights: bytes = bytes(range(256)) * 1000) -> Path:
    """Writes a whole folder with this config, in the place of what is there, and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        (partial / "README.md").write_text(CARD)
        (partial / "config.json").write_text(text)
        (partial / "model.safetensors").write_bytes(weights)
    return folder


def send(folder: Path, place: Repository = PLACE) -> str:
    """Publishes the folder and returns its address."""
    return publish(folder, f"hf:{NAME}", place, "Release of tiny")


def held(hub: Hub, revision: str = "main") -> dict[str, bytes]:
    """Returns the files of the repository at a revision."""
    return {
        path: content for path, content in hub.repository(f"models/{NAME}").files(revision).items() if path[0] != "."
    }


def content(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def sent(hub: Hub, kind: str) -> list[str]:
    """Returns the requests of a kind."""
    return [request for request in hub.requests if kind in request]
