"""A release with an ONNX file and shards, as a user asks for it: whole, quiet, or refused before it is there."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longmlm.folders import verify
from longmlm.release import onnx_graph, reload
from longmlm.settings.release import ReleaseConfig
from longmlm.stages.release import release
from tests.support.tiny import World, prove_in_this_process

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def settings(world: World, evaluation: Path, tmp_path: Path) -> dict[str, object]:
    """Settings of a release with all of it."""
    places = {"model": world.trained, "rows": world.rows, "output": tmp_path / "out" / "tiny", "evaluation": evaluation}
    card = {"title": "tiny", "license": "apache-2.0", "data": ["demo novels"]}
    return {name: str(path) for name, path in places.items()} | card | {"onnx": True, "max_shard_size": "20KB"}


@pytest.mark.slow
def test_release_holds_shards_and_a_proved_onnx_file_and_says_only_that(
    settings: dict[str, object], run_here: Run
) -> None:
    code, said, warned = run_here(ReleaseConfig, release, settings | {"weights": "bf16"})
    assert (code, warned) == (0, "")
    found = re.search(r"^model\.onnx with onnxruntime: logits differ by (\S+) at the most$", said, re.MULTILINE)
    assert found
    assert 0 < float(found[1]) < 1e-4
    output = Path(str(settings["output"]))
    files = verify(output)["files"].keys()
    assert {"model.onnx", "model.safetensors.index.json", "README.md"} <= files
    assert len([name for name in files if name.endswith(".safetensors")]) > 2
    assert "cached_file" in (output / "README.md").read_text()
    assert json.loads((output / "config.json").read_text())["dtype"] == "bfloat16"
    again = run_here(ReleaseConfig, release, settings | {"weights": "bf16", "publish": f"folder:{output}-copy"})
    assert again[0] == 0
    assert verify(Path(f"{output}-copy"))["files"].keys() == files


def test_file_that_gives_other_logits_leaves_nothing(
    settings: dict[str, object], run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = []

    def write_graph(folder: Path) -> None:
        (folder / onnx_graph.GRAPH).write_bytes(b"")
        written.append(folder)

    prove_in_this_process(monkeypatch)
    monkeypatch.setattr(onnx_graph, "write_graph", write_graph)
    monkeypatch.setattr(reload, "run_onnx", lambda _: lambda ids, _: torch.zeros(*ids.shape, 300))
    code, said, warned = run_here(ReleaseConfig, release, settings)
    assert (code, said, len(written)) == (2, "", 1)
    assert warned.splitlines()[-1].startswith(
        "error: the exported folder was not written: logits of model.onnx differ by"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_extra_is_told_in_a_line_before_any_work(
    settings: dict[str, object], run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(onnx_graph, "find_spec", lambda _: None)
    code, said, warned = run_here(ReleaseConfig, release, settings | {"model": "nowhere"})
    assert (code, said) == (2, "")
    assert warned == "error: onnx = true needs onnx, which is not installed: pip install 'longmlm[onnx]'\n"
    assert not (tmp_path / "out").exists()
