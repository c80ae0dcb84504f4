"""The checkpoints of a run: listed, verified, exported."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.provenance import read_provenance
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.stages.checkpoints import checkpoints
from longmlm.training.run_folder import checkpoint_folder


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_list_has_a_line_for_each_checkpoint_and_marks_the_best(run_here, run_folder) -> None:
    code, output, _ = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder)})
    lines = [line.split() for line in output.splitlines()[2:]]
    assert code == 0
    assert [line[0] for line in lines] == ["step-00000001", "step-00000002"]
    assert [line[1:3] for line in lines] == [["100", "9.00"], ["200", "3.00"]]
    assert [line[-1] == "best" for line in lines] == [True, False]


def test_list_and_verify_do_not_import_torch() -> None:
    code = "import longmlm.stages.checkpoints, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_verify_reads_every_file_and_names_what_is_damaged(run_here, run_folder) -> None:
    settings = {"run": str(run_folder), "action": "verify"}
    code, output, _ = run_here(CheckpointsConfig, checkpoints, settings)
    assert (code, output.count("intact"), output.count("damaged")) == (0, 2, 0)
    damage(checkpoint_folder(run_folder, 1) / "optimizer.pt")
    code, output, error = run_here(CheckpointsConfig, checkpoints, settings)
    assert code == 2
    assert output.count("damaged") == 1
    assert "1 of 2 checkpoints" in error and "step-00000001/optimizer.pt is damaged" in error
    assert len(error.splitlines()) == 1
    assert "best" in next(line for line in output.splitlines() if line.startswith("step-00000002"))


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_verified(run_here, run_folder, monkeypatch) -> None:
    unreadable, read = checkpoint_folder(run_folder, 1), Path.open

    def failing(path: Path, *arguments: object, **more: object) -> object:
        if path == unreadable / "optimizer.pt":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", failing)
    code, output, error = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder), "action": "verify"})
    assert (code, output.count("intact"), output.count("unreadable")) == (2, 1, 1)
    assert "unreadable: 1 of 2 checkpoints" in error and f"{unreadable} cannot be read: the disk" in error
    assert f"{unreadable / 'optimizer.pt'}" in error and "damaged" not in error and error.count("\n") == 1


def test_verify_names_the_files_that_no_manifest_lists(run_here, run_folder) -> None:
    folder = checkpoint_folder(run_folder, 2)
    (folder / ".extra.bin").write_bytes(b"")
    code, output, _ = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder), "action": "verify"})
    assert (code, output.count("intact")) == (0, 2)
    assert output.splitlines()[-1].endswith(f"{folder / 'manifest.json'} does not list .extra.bin")


@pytest.mark.parametrize(("chosen", "step"), [({}, 1), ({"step": 2}, 2)])
def test_export_writes_a_stock_model(run_here, run_folder, tmp_path, chosen, step) -> None:
    settings = chosen | {"run": str(run_folder), "action": "export", "output": str(tmp_path / "out")}
    code, output, _ = run_here(CheckpointsConfig, checkpoints, settings)
    assert code == 0 and f"step-0000000{step}" in output
    source = checkpoint_folder(run_folder, step)
    tokens = torch.arange(10, 40).unsqueeze(0)
    with torch.no_grad():
        logits = [
            AutoModelForMaskedLM.from_pretrained(folder)(input_ids=tokens).logits
            for folder in (source, tmp_path / "out")
        ]
    assert torch.equal(*logits)
    assert read_provenance(tmp_path / "out").trained.steps == step
    assert not any((tmp_path / "out").glob("*.pt"))


def test_a_damaged_checkpoint_is_not_exported(run_here, run_folder, tmp_path) -> None:
    damage(checkpoint_folder(run_folder, 2) / "model.safetensors")
    settings = {"run": str(run_folder), "action": "export", "step": 2, "output": str(tmp_path / "out")}
    code, _, error = run_here(CheckpointsConfig, checkpoints, settings)
    assert code == 2 and "model.safetensors is damaged" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"action": "export"}, "output"),
        ({"output": "new"}, "output"),
        ({"action": "export", "output": "no-such-folder", "step": 7}, "step-00000007"),
        ({"run": "nowhere"}, "nowhere: no such folder: run longmlm pretrain first"),
    ],
)
def test_impossible_settings_are_refused_in_a_line(run_here, run_folder, settings, reason) -> None:
    code, _, error = run_here(CheckpointsConfig, checkpoints, {"run": str(run_folder)} | settings)
    assert code == 2
    assert reason in error and len(error.splitlines()) == 1
