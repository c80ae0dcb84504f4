"""The checkpoints of a run: what lies there, whether it is sound, and one of them for others."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.model.loading import read_provenance
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.stages.checkpoints import checkpoints
from longmlm.training.checkpoint import folder_of


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_list_has_a_line_for_each_checkpoint_and_marks_the_best(run_here, run_folder) -> None:
    code, said, _ = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder)})
    lines = [line.split() for line in said.splitlines()[2:]]
    assert code == 0
    assert [line[0] for line in lines] == ["step-00000001", "step-00000002"]
    assert [line[1:3] for line in lines] == [["100", "9.00"], ["200", "3.00"]]
    assert [line[-1] == "best" for line in lines] == [True, False]


def test_verify_reads_every_file_and_names_what_is_damaged(run_here, run_folder) -> None:
    asked = {"run": str(run_folder), "action": "verify"}
    code, said, _ = run_here(CheckpointsConfig, checkpoints, asked)
    assert (code, said.count(" sound"), said.count("unsound")) == (0, 2, 0)
    damage(folder_of(run_folder, 1) / "optimizer.pt")
    code, said, wrong = run_here(CheckpointsConfig, checkpoints, asked)
    assert code == 2
    assert said.count("unsound") == 1
    assert "1 of 2 checkpoints are unsound" in wrong and "step-00000001/optimizer.pt is damaged" in wrong
    assert len(wrong.splitlines()) == 1
    assert "best" in next(line for line in said.splitlines() if line.startswith("step-00000002"))


@pytest.mark.parametrize(("asked", "step"), [({}, 1), ({"step": 2}, 2)])
def test_export_writes_a_stock_model(run_here, run_folder, tmp_path, asked, step) -> None:
    asked = asked | {"run": str(run_folder), "action": "export", "output": str(tmp_path / "out")}
    code, said, _ = run_here(CheckpointsConfig, checkpoints, asked)
    assert code == 0 and f"step-0000000{step}" in said
    source = folder_of(run_folder, step)
    tokens = torch.arange(10, 40).unsqueeze(0)
    with torch.no_grad():
        logits = [
            AutoModelForMaskedLM.from_pretrained(folder)(input_ids=tokens).logits
            for folder in (source, tmp_path / "out")
        ]
    assert torch.equal(*logits)
    assert read_provenance(str(tmp_path / "out"))["trained"]["steps"] == step
    assert not any((tmp_path / "out").glob("*.pt"))


def test_a_damaged_checkpoint_is_not_exported(run_here, run_folder, tmp_path) -> None:
    damage(folder_of(run_folder, 2) / "model.safetensors")
    asked = {"run": str(run_folder), "action": "export", "step": 2, "output": str(tmp_path / "out")}
    code, _, wrong = run_here(CheckpointsConfig, checkpoints, asked)
    assert code == 2 and "model.safetensors is damaged" in wrong
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"action": "export"}, "export needs output"),
        ({"output": "out"}, "list and verify need none"),
        ({"action": "export", "output": "out", "step": 7}, "no such folder"),
        ({"run": "nowhere"}, "holds no checkpoints"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(run_here, run_folder, asked, said) -> None:
    code, _, wrong = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder)} | asked)
    assert code == 2
    assert said in wrong and len(wrong.splitlines()) == 1
