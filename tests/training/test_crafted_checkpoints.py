"""A checkpoint whose content fits its manifest and not its run is refused in one line that names the file."""

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longmlm.errors import UserError
from longmlm.folders import MANIFEST, entry_of
from longmlm.model.loading import load_model
from longmlm.training.run_folder import best_checkpoint, newest_verified, read_state
from longmlm.training.saved_tensors import read_generators, read_optimizer


def seal_again(folder: Path) -> None:
    """Makes the manifest say what the files hold now."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: asdict(entry_of(folder / name)) for name in manifest["files"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def state_with(key: str, value: object) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        state = json.loads(content)
        target = state if key in state else state["state"]
        if value is KeyError:
            del target[key]
        else:
            target[key] = value
        return json.dumps(state).encode()

    return change


STATES: dict[str, Callable[[bytes], bytes]] = {
    **{f"{key} {value}": state_with(key, value) for key in ("step", "cursor", "tokens") for value in (-1, "4", 2**63)},
    "another step": state_with("step", 7),
    "steps skipped": state_with("skipped_steps", 5),
    "evaluated later": state_with("evaluated_at_step", 90),
    "not a number": state_with("accuracy", float("nan")),
    "no percentage": state_with("best_accuracy", 1e300),
    "negative time": state_with("training_seconds", -1.0),
    "no micro-batch": state_with(
        "micro_batch", {"num_rows": 0, "num_processes": 1, "device": "cpu", "is_recomputed": False}
    ),
    "no recipe": state_with("recipe", KeyError),
    "a list": lambda _: b"[]",
    "nested": lambda _: b"[" * 100_000,
    "empty": lambda _: b"",
}


def spoiled_optimizers(content: dict[str, Any]) -> list[object]:
    """Returns contents of optimizer.pt that no run after four steps has."""
    states, first = content["state"], content["state"][0]

    def with_first(**changes: object) -> object:
        return {"state": {**states, 0: {**first, **changes}}}

    moments = ("x", first["exp_avg"].long(), torch.zeros(3), torch.full_like(first["exp_avg"], float("nan")))
    return [
        *([1], {}, {"state": 3}, {"state": {}}, {"state": {**states, 999: first}}),
        {"state": {**states, 0: {key: value for key, value in first.items() if key != "exp_avg"}}},
        *(with_first(exp_avg=moment) for moment in moments),
        with_first(exp_avg_sq=torch.full_like(first["exp_avg_sq"], -1.0)),
        *(with_first(step=step) for step in (torch.tensor(-4.0), torch.tensor(400.0), "4")),
    ]


def spoiled_generators(content: dict[str, Any]) -> list[object]:
    """Returns contents of a rank's generator states that no run has."""
    states = ("x", torch.zeros(3, dtype=torch.uint8), content["cpu"].float(), torch.full_like(content["cpu"], 255))
    return [3, {}, *({"cpu": state} for state in states)]


def newest(settings: Any) -> Path:
    found = newest_verified(Path(settings.run)).folder
    assert found is not None
    return found


def refusal(path: Path, read: Callable[[], object]) -> str:
    """Returns the line in which a file is refused."""
    with pytest.raises(UserError) as raised:
        read()
    line = str(raised.value)
    assert str(path) in line and "\n" not in line and len(line) < 700
    return line


def test_what_no_run_wrote_is_refused_with_the_name_of_its_file(half_trained: Any, train: Callable) -> None:
    folder = newest(half_trained)
    path = folder / "state.json"
    content = path.read_bytes()
    for name, change in STATES.items():
        path.write_bytes(change(content))
        assert "damaged" in refusal(path, lambda: read_state(folder)), name
    path.write_bytes(state_with("format", 1)(content))
    seal_again(folder)
    assert "its format is 1" in refusal(path, lambda: best_checkpoint(Path(half_trained.run)))
    path.write_bytes(content)
    seal_again(folder)

    model = load_model(str(folder)).model
    readers = {
        "optimizer.pt": lambda: read_optimizer(folder / "optimizer.pt", model, read_state(folder).state.step, False),
        "rng-00000.pt": lambda: read_generators(folder / "rng-00000.pt"),
    }
    spoiled = {"optimizer.pt": spoiled_optimizers, "rng-00000.pt": spoiled_generators}
    for file, read in readers.items():
        path, content = folder / file, (folder / file).read_bytes()
        read()
        for other in spoiled[file](torch.load(path, weights_only=True)):
            torch.save(other, path)
            assert "move" in refusal(path, read), other
        for damaged in (b"", b"garbage", content[: len(content) // 2], pickle.dumps(print)):
            path.write_bytes(damaged)
            assert "damaged" in refusal(path, read)
        path.write_bytes(content)

    path, content = folder / "optimizer.pt", (folder / "optimizer.pt").read_bytes()
    path.write_bytes(b"garbage")
    seal_again(folder)
    assert newest(half_trained) == folder
    refusal(path, lambda: train(half_trained))
    path.write_bytes(content)
    seal_again(folder)
    train(half_trained)
    assert newest(half_trained) > folder


def test_the_scaler_of_a_run_in_fp16_is_checked(tmp_path: Path) -> None:
    model, path = nn.Linear(2, 2), tmp_path / "optimizer.pt"
    scaler = torch.amp.GradScaler("cpu").state_dict()
    torch.save({"state": {}, "scaler": scaler}, path)
    assert read_optimizer(path, model, 0, True)["scaler"] == scaler
    for changed_scaler in (
        None,
        3,
        {},
        {**scaler, "scale": "x"},
        {**scaler, "scale": float("nan")},
        {**scaler, "scale": 0.0},
    ):
        torch.save({"state": {}, "scaler": changed_scaler}, path)
        refusal(path, lambda: read_optimizer(path, model, 0, True))
