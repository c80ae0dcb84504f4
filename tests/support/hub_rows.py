"""Published rows on a hub of this machine, and a short run on them, as fixtures."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.folders import MANIFEST
from longmlm.release.dataset import Publication, write_dataset
from longmlm.settings.masking import HeldOut
from longmlm.settings.prepare import RowsCard
from longmlm.settings.pretrain import PretrainConfig
from tests.support.hub import Hub, point_client_at, serve

NAME, TOKEN = "owner/rows", "hf_planted0123456789"


@pytest.fixture
def short(settings: PretrainConfig) -> PretrainConfig:
    """Four steps, and two checkpoints."""
    recipe = replace(settings.recipe, num_steps=4, batch_tokens=128, held_out=HeldOut(max_rows=4))
    runtime = replace(settings.runtime, evaluate_every_steps=4, save_every_steps=2)
    return replace(settings, recipe=recipe, runtime=runtime)


@pytest.fixture(scope="session")
def published_files(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the published rows."""
    folder = tmp_path_factory.mktemp("published")
    write_dataset(inputs / "rows", Publication(str(inputs / "tokenizer"), RowsCard(license="cc0-1.0")), folder)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", MANIFEST} < found.keys()
    return found


@pytest.fixture
def hub(published_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        hub.token = TOKEN
        hub.repository(f"datasets/{NAME}").private = True
        hub.repository(f"datasets/{NAME}").commit(published_files)
        point_client_at(hub, tmp_path / "hf", monkeypatch)
        yield hub
