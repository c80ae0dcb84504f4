"""A trained long model, its rows and its evaluation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import set_client_factory
from huggingface_hub.utils import enable_progress_bars, logging
from huggingface_hub.utils._http import default_client_factory

from longmlm.hubs import huggingface
from tests.support.hub import Hub, point_client_at, serve
from tests.support.published import TOKEN, make
from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation(world: World) -> Path:
    return tiny_evaluation(world)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the client in this process asks, which knows one token, and whose faults are not waited for."""
    with serve() as hub:
        hub.token = TOKEN
        point_client_at(hub, tmp_path / "hf", monkeypatch)
        monkeypatch.setattr(huggingface, "WAITS_SECONDS", (0.0, 0.0))
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        yield hub
        set_client_factory(default_client_factory)
        logging.set_verbosity_warning()
        enable_progress_bars()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder such as a release is."""
    return make(tmp_path / "tiny")
