"""Published rows on two processes: one download for a machine, one line when the hub refuses."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.folders import MANIFEST, read_manifest
from tests.support.hub_rows import NAME, TOKEN
from tests.support.launching import errors_in, run_to_end
from tests.support.training import losses, with_runtime

pytestmark = pytest.mark.slow


@pytest.fixture
def of_hub(short, hub, tmp_path, monkeypatch):
    """The settings of two processes on published rows."""
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    for name, value in {**environment, "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    return with_runtime(replace(short, rows=f"hf:{NAME}"), num_processes=2)


def test_two_processes_download_each_file_once(of_hub, inputs, hub, tmp_path):
    code, output = run_to_end(of_hub, tmp_path)
    assert code == 0, output[-2000:]
    assert len(losses(Path(of_hub.run))) == 4
    sent = Counter(path.split("/", 6)[-1] for path, *_ in hub.sent)
    shards = [name for name in read_manifest(inputs / "rows")["files"] if name.endswith(".arrow")]
    assert len(shards) >= 2
    assert sent == Counter([MANIFEST, *shards])
    assert not [line for line in hub.requests if TOKEN in line]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes()


def test_a_hub_that_refuses_stops_two_processes_in_one_line(of_hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    code, output = run_to_end(of_hub, tmp_path)
    assert code != 0
    [error] = errors_in(output)
    assert NAME in error
    assert not Path(of_hub.run).exists()
