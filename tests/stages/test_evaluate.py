"""Models to accuracies, as a user asks for them: what is written, what is said, what is refused."""

import html
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.model.loading import weights_sha256
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.stages.evaluate import evaluate
from longmlm.training import tracking
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, held_out, tiny_folder

Run = Callable[..., tuple[int, str, str]]
PICTURES = {"blocks.png", "recovery.png"}


def settings(world: World, output: Path) -> dict[str, object]:
    """Returns settings that are quick and right."""
    models = {"base": str(world.base), "long_before": str(world.long), "long_after": str(world.trained)}
    rows = {"rows": str(world.rows), "held_out": {"max_rows": 10}}
    return {"output": str(output), **models, **rows}


def read(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


def test_all_five_measures_are_taken_on_all_held_out_rows(world: World, evaluation: Path) -> None:
    found = read(evaluation)
    names = ["base_cut", "base_windows", "long_before", "long_after", "long_after_cut"]
    assert list(found["measured"]) == names
    assert (found["row_length"], found["block"]) == (LONG_POSITIONS, NUM_POSITIONS)
    assert found["num_rows"] == len(held_out(world.rows))
    counts = [found["measured"][name]["whole"]["num_selected"] for name in names]
    assert counts[1] == counts[2] == counts[3] > 2 * counts[0] > 200
    assert counts[4] == counts[0]
    accuracy = {name: found["measured"][name]["whole"]["accuracy"] for name in names}
    assert accuracy["long_after"] > 2 + max(accuracy[name] for name in names[:3])
    assert found["gains"]["recovered"] is True
    assert found["gains"]["context"] == accuracy["long_after"] - accuracy["base_windows"]
    paths = (world.rows, world.base, world.long, world.trained)
    sources = dict(zip(("rows", "base", "before", "after"), (str(path) for path in paths), strict=True))
    assert found["sources"] == {
        **sources,
        "rows_sha256": held_out(world.rows).sha256,
        "after_sha256": weights_sha256(world.trained),
        "precision": "no",
    }


def test_table_is_printed_and_page_named(world: World, tmp_path: Path, run_here: Run) -> None:
    output = tmp_path / "out" / "evaluation"
    code, said, warned = run_here(EvaluateConfig, evaluate, settings(world, output))
    assert code == 0
    assert "Traceback" not in warned
    lines = said.splitlines()
    assert lines[0].split() == [
        "accuracy",
        "in",
        "%",
        "base_cut",
        "base_windows",
        "long_before",
        "long_after",
        "long_after_cut",
    ]
    assert [line.split("  ")[0] for line in lines[2:6]] == ["whole row", "0–15", "16–31", "32–39"]
    assert lines[-1] == f"page: {output / 'index.html'}"
    whole = read(output)["measured"]["long_after"]["whole"]
    assert f"  {whole['accuracy']:.2f} ± {whole['standard_error']:.2f}  " in lines[2]
    assert read(output)["num_rows"] == 10
    assert {path.name for path in output.iterdir()} == {"evaluation.json", "index.html", *PICTURES} - {"recovery.png"}


def test_page_names_settings_that_make_it_again(world: World, evaluation: Path, tmp_path: Path, run_here: Run) -> None:
    text = html.unescape(re.findall(r"<pre>(.*?)</pre>", (evaluation / "index.html").read_text(), re.DOTALL)[0])
    again = tomllib.loads(text) | {"output": str(tmp_path / "again")}
    assert text.startswith("# longmlm evaluate settings.toml\n")
    assert run_here(EvaluateConfig, evaluate, again)[0] == 0
    assert read(tmp_path / "again") == read(evaluation)


def test_examples_are_filled_in_by_the_last_model(world: World, evaluation: Path) -> None:
    examples = read(evaluation)["examples"]
    assert len(examples) == 8
    assert all(example["place"] >= 0.9 * 0.9 * LONG_POSITIONS for example in examples)
    answers = {example["guesses"][0][0] for example in examples}
    assert len(answers) == 1, "the trained model answers one token everywhere"
    assert all(example["guesses"][0][1] > 0.9 for example in examples)


def test_long_model_can_be_looked_at_before_it_is_trained(world: World, tmp_path: Path, run_here: Run) -> None:
    asked = settings(world, tmp_path / "out") | {"precision": "bf16"}
    del asked["long_after"]
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    found = read(tmp_path / "out")
    assert list(found["measured"]) == ["base_cut", "base_windows", "long_before"]
    assert found["gains"] == {}
    assert "after" not in found["sources"]


def test_run_folder_stands_for_its_best_checkpoint_and_gives_the_curve(
    world: World, tmp_path: Path, run_here: Run, run_folder: Path
) -> None:
    whole = {"accuracy": 4.0, "standard_error": 0.5, "loss": 5.0, "num_selected": 100}
    for step in (0, 5):
        line = {"step": step, "held_out": {"whole": whole, "blocks": [whole]}, "base_cut": 3.0}
        tracking.append(run_folder, line | {"examples": ["many"]})
        tracking.append(run_folder, {"step": step, "loss": 5.0})
    asked = settings(world, tmp_path / "out") | {"long_after": str(run_folder), "run": str(run_folder)}
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    found = read(tmp_path / "out")
    assert found["sources"]["after"] == str(run_folder)
    assert found["sources"]["after_sha256"] == weights_sha256(run_folder / "checkpoints" / "step-00000001")
    assert found["sources"]["after_sha256"] == weights_sha256(world.trained) != weights_sha256(world.long)
    assert [line["step"] for line in found["curve"]] == [0, 5]
    assert all("examples" not in line for line in found["curve"])
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == PICTURES


def test_an_earlier_result_is_replaced(world: World, evaluation: Path, tmp_path: Path, run_here: Run) -> None:
    output = Path(shutil.copytree(evaluation, tmp_path / "out"))
    (output / "recovery.png").write_bytes(b"of another run")
    asked = settings(world, output) | {"held_out": {"max_rows": 7, "mask_seed": 5}}
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    found = read(output)
    assert (found["num_rows"], found["mask_seed"]) == (7, 5)
    assert not (output / "recovery.png").exists()


def test_weights_from_a_pickle_are_said(world: World, tmp_path: Path, run_here: Run) -> None:
    copy = Path(shutil.copytree(world.base, tmp_path / "base"))
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    code, said, _ = run_here(EvaluateConfig, evaluate, settings(world, tmp_path / "out") | {"base": str(copy)})
    assert code == 0
    assert said.startswith(f"{copy} has no safetensors file")


ERRORS = {
    "no rows": ({"rows": "nowhere"}, "nowhere: no such folder"),
    "no such rows": ({"rows": "{base}"}, "has no manifest.json"),
    "other rows": ({"rows": "{long}"}, "holds no packed rows"),
    "no base": ({"base": "nowhere"}, "neither a folder with a model nor one that the hub gives"),
    "other tokenizer": ({"base": "{other}"}, "made by another tokenizer"),
    "not extended": ({"long_before": "{base}"}, f"{NUM_POSITIONS}: extend it first"),
    "before of another tokenizer": ({"long_before": "{other}"}, "made by another tokenizer"),
    "no before": ({"long_before": "nowhere"}, "nowhere"),
    "after not extended": ({"long_after": "{base}"}, f"{NUM_POSITIONS}: extend it first"),
    "no after": ({"long_after": "nowhere"}, "nowhere is no folder with model.safetensors"),
    "empty run": ({"long_after": "{empty}"}, "has no sound checkpoint"),
    "no curve": ({"run": "{empty}"}, "holds no evaluations of a run"),
    "no rows wanted": ({"held_out": {"max_rows": 0}}, "must be at least 1"),
    "precision": ({"precision": "fp8"}, "precision"),
    "unknown key": ({"long_befor": "x"}, "did you mean long_before?"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_users_error_is_one_line_and_leaves_nothing(name: str, world: World, tmp_path: Path, run_here: Run) -> None:
    spoilt, message = ERRORS[name]
    places = {"base": world.base, "long": world.long, "empty": tmp_path / "empty", "other": tmp_path / "other"}
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    if "other tokenizer" in name or "another tokenizer" in name:
        tiny_folder(tmp_path / "other", "roberta", 3)
    named = {key: value.format(**places) if isinstance(value, str) else value for key, value in spoilt.items()}
    code, said, warned = run_here(EvaluateConfig, evaluate, settings(world, tmp_path / "out") | named)
    assert (code, said) == (2, "")
    last = warned.rstrip("\n").split("\r")[-1].splitlines()[-1].strip()
    assert last.startswith("error: ")
    assert message in last
    assert warned.count("error: ") == 1
    assert "Traceback" not in warned
    assert "row/s" not in warned, "nothing is measured before all is known to be right"
    assert not (tmp_path / "out").exists()


def test_file_in_the_place_of_the_output_is_left_alone(world: World, tmp_path: Path, run_here: Run) -> None:
    (tmp_path / "out").write_text("mine")
    code, said, warned = run_here(EvaluateConfig, evaluate, settings(world, tmp_path / "out"))
    assert (code, said) == (2, "")
    assert f"error: {tmp_path / 'out'}: File exists" in warned
    assert (tmp_path / "out").read_text() == "mine"


def test_command_ends_on_an_error_with_one_line_and_code_2(world: World, tmp_path: Path, run_there: Run) -> None:
    code, said, warned = run_there("evaluate", settings(world, tmp_path / "out") | {"run": str(tmp_path)})
    assert (code, said) == (2, "")
    assert warned == f"error: {tmp_path} holds no evaluations of a run: name the folder that pretrain.py wrote\n"
    assert not (tmp_path / "out").exists()
