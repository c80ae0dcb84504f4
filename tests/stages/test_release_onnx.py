"""A release with an ONNX file and shards: complete, quiet, or refused with nothing left."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longmlm.folders import verify
from longmlm.release import build, reload
from longmlm.settings.release import ReleaseConfig
from longmlm.stages.release import release
from tests.support.tiny import World, prove_in_this_process

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def settings(world: World, evaluation: Path, tmp_path: Path) -> dict[str, object]:
    """Settings of a release with all of it."""
    paths = {"model": world.trained, "rows": world.rows, "output": tmp_path / "out" / "tiny", "evaluation": evaluation}
    card = {"title": "tiny", "license": "apache-2.0", "data": ["demo novels"]}
    recipe = {"onnx": True, "max_shard_size": "20KB"}
    return {name: str(path) for name, path in paths.items()} | {"card": card, "recipe": recipe}


def in_bf16(settings: dict[str, object]) -> dict[str, object]:
    return settings | {"recipe": {**settings["recipe"], "weights": "bf16"}}


@pytest.mark.slow
def test_release_holds_shards_and_a_proved_onnx_file_and_says_only_that(
    settings: dict[str, object], run_here: Run
) -> None:
    code, said, warned = run_here(ReleaseConfig, release, in_bf16(settings))
    assert (code, warned) == (0, "")
    found = re.search(r"^ONNX files .* logits differ by at most (\S+), vectors by (\S+)$", said, re.MULTILINE)
    assert found
    assert 0 < float(found[1]) < 1e-4
    assert 0 < float(found[2]) < 1e-4
    output = Path(str(settings["output"]))
    files = verify(output)["files"].keys()
    assert {"onnx/model.onnx", "onnx/mlm_int8.onnx", "model.safetensors.index.json", "README.md"} <= files
    assert len([name for name in files if name.endswith(".safetensors")]) > 2
    assert "cached_file" in (output / "README.md").read_text()
    assert json.loads((output / "config.json").read_text())["dtype"] == "bfloat16"
    again = run_here(ReleaseConfig, release, in_bf16(settings) | {"publish": f"folder:{output}-copy"})
    assert again[0] == 0
    assert verify(Path(f"{output}-copy"))["files"].keys() == files


def test_file_that_gives_other_logits_leaves_nothing(
    settings: dict[str, object], run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = []

    def write_graphs(folder: Path) -> list[str]:
        (folder / "onnx").mkdir()
        (folder / reload.MLM).write_bytes(b"")
        written.append(folder)
        return []

    def constant(file: Path, output: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return lambda ids, mask: torch.zeros(
            len(ids) if "sentence" in output else int(mask.sum()), 300 if output == "logits" else 32
        )

    prove_in_this_process(monkeypatch)
    monkeypatch.setattr(build, "write_graphs", write_graphs)
    monkeypatch.setattr(reload, "run_onnx", constant)
    monkeypatch.setattr(reload, "run_codes", lambda *_: None)  # the file holds no graph
    code, said, warned = run_here(ReleaseConfig, release, settings)
    assert (code, said, len(written)) == (2, "", 1)
    assert re.match(r"error: .*outputs of onnx/mlm\.onnx differ by", warned.splitlines()[-1])
    assert list((tmp_path / "out").iterdir()) == []
