"""The evaluate stage as a user runs it: what it writes, prints and refuses."""

import html
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.artifacts.evaluation import EVALUATION_FILES, VIEW_NAMES, Evaluation, EvaluationSources, read_evaluation
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.batches.collate import MlmBatch
from longmlm.folders import replaced_folder
from longmlm.hubs.model_files import model_sha256, weights_sha256
from longmlm.model.mlm import MlmObjective, MlmOutput
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.stages.evaluate import evaluate
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World, held_out, tiny_folder

Run = Callable[..., tuple[int, str, str]]
PICTURES = {"blocks.png", "recovery.png"}


def settings(world: World, output: Path) -> dict[str, object]:
    """Returns settings that are quick and right."""
    models = {"base": str(world.base), "long_before": str(world.long), "long_after": str(world.trained)}
    return {"output": str(output), **models, "rows": str(world.rows), "recipe": {"held_out": {"max_rows": 10}}}


def read(folder: Path) -> Evaluation:
    return read_evaluation(folder / "evaluation.json")


def test_all_five_measures_are_taken_on_all_held_out_rows(world: World, evaluation: Path) -> None:
    found = read(evaluation)
    assert tuple(found.measured) == VIEW_NAMES
    assert (found.row_length, found.base_positions) == (LONG_POSITIONS, NUM_POSITIONS)
    assert found.num_rows == len(held_out(world.rows))
    counts = [found.measured[name].whole.num_selected for name in VIEW_NAMES]
    assert counts[1] == counts[2] == counts[3] > 2 * counts[0] > 200
    assert counts[4] == counts[0]
    accuracy = {name: found.accuracy(name) for name in VIEW_NAMES}
    assert accuracy["long_after"] > 2 + max(accuracy[name] for name in VIEW_NAMES[:3])
    assert found.is_recovered is True
    assert found.recovery.points == accuracy["long_after"] - accuracy["base_chunks"]
    assert found.precision == "no"
    assert found.sources == EvaluationSources(
        rows=str(world.rows),
        rows_sha256=held_out(world.rows).sha256,
        base=str(world.base),
        before=str(world.long),
        after=str(world.trained),
        after_sha256=weights_sha256(world.trained),
        base_sha256=model_sha256(world.base),
        before_sha256=weights_sha256(world.long),
    )


def test_a_second_evaluation_into_one_folder_is_refused_before_a_model_is_loaded(
    world: World, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longmlm.stages.evaluate.load_models", lambda *_: pytest.fail("a model is loaded"))
    with replaced_folder(tmp_path / "out", EVALUATION_FILES) as first:
        code, _, warned = run_here(EvaluateConfig, evaluate, settings(world, tmp_path / "out"))
        (first / "evaluation.json").write_text("{}", encoding="utf-8")
    assert code == 2
    assert f"{first} is being written by another process" in warned
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["evaluation.json"]


def test_table_is_printed_and_page_named(world: World, tmp_path: Path, run_here: Run) -> None:
    output = tmp_path / "out" / "evaluation"
    code, said, warned = run_here(EvaluateConfig, evaluate, settings(world, output))
    assert code == 0
    assert "Traceback" not in warned
    lines = said.splitlines()
    assert lines[0].split() == ["accuracy", "in", "%", *VIEW_NAMES]
    assert [line.split("  ")[0] for line in lines[2:6]] == ["whole row", "0–15", "16–31", "32–39"]
    page, worth = lines[-2:]
    assert page == f"page: {output / 'index.html'}"
    whole = read(output).measured["base_chunks"].whole
    assert worth.startswith("On whole rows, the long model is ")
    assert f"points above the {whole.accuracy:.2f} % of {world.base.name} in chunks" in worth
    whole = read(output).measured["long_after"].whole
    assert f"  {whole.accuracy:.2f} ± {whole.standard_error:.2f}  " in lines[2]
    assert read(output).num_rows == 10
    assert {path.name for path in output.iterdir()} == {"evaluation.json", "index.html", *PICTURES} - {"recovery.png"}


def test_page_names_the_settings_without_the_paths_of_this_machine(world: World, evaluation: Path) -> None:
    page = (evaluation / "index.html").read_text()
    text = html.unescape(re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)[0])
    assert text.startswith("# longmlm evaluate settings.toml\n")
    shown = tomllib.loads(text)
    assert (shown["base"], shown["long_after"], shown["rows"]) == (world.base.name, world.trained.name, world.rows.name)
    assert shown["recipe"]["precision"] == read(evaluation).precision
    assert str(world.rows.parent) not in page


def test_examples_are_filled_in_by_the_last_model(world: World, evaluation: Path) -> None:
    examples = read(evaluation).examples
    assert len(examples) == 8
    assert all(example.position >= 0.9 * 0.9 * LONG_POSITIONS for example in examples)
    answers = {example.guesses[0][0] for example in examples}
    assert len(answers) == 1, "the trained model answers one token everywhere"
    assert all(example.guesses[0][1] > 0.9 for example in examples)


def test_long_model_can_be_evaluated_before_it_is_trained_with_a_note_on_the_base_model(
    world: World, tmp_path: Path, run_here: Run
) -> None:
    base = Path(shutil.copytree(world.base, tmp_path / "base"))
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    recipe = {"precision": "bf16", "held_out": {"max_rows": 10}}
    asked = settings(world, tmp_path / "out") | {"recipe": recipe, "base": str(base)}
    del asked["long_after"]
    code, said, _ = run_here(EvaluateConfig, evaluate, asked)
    assert code == 0 and said.startswith(f"{base} has no safetensors file")
    found = read(tmp_path / "out")
    assert tuple(found.measured) == VIEW_NAMES[:3]
    assert (found.precision, found.is_recovered, found.sources.after) == ("bf16", None, None)


def test_run_folder_stands_for_its_best_checkpoint_and_gives_the_curve(
    world: World, tmp_path: Path, run_here: Run, run_folder: Path
) -> None:
    whole = Accuracy(4.0, 0.5, 5.0, 100)
    for step in (0, 5):
        example = FilledMask(1, 2, "a", "b", "c", (("c", 0.5),))
        measured = Measured(whole, (whole,), (), (100,), (4,))
        line = EvaluationMetrics(step=step, tokens=0, held_out=measured, base_cut=3.0, examples=(example,))
        MetricsFile(run_folder).append(line)
    asked = settings(world, tmp_path / "out") | {"long_after": str(run_folder), "run": str(run_folder)}
    code, said, _ = run_here(EvaluateConfig, evaluate, asked)
    assert code == 0
    assert "step-00000001, the best intact checkpoint of the run; the last one is step-00000002\n" in said
    found = read(tmp_path / "out")
    assert found.sources.after == str(run_folder)
    assert found.sources.after_sha256 == weights_sha256(run_folder / "checkpoints" / "step-00000001")
    assert found.sources.after_sha256 == weights_sha256(world.trained) != weights_sha256(world.long)
    assert [line.step for line in found.curve] == [0, 5]
    assert all(line.examples == () for line in found.curve)
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == PICTURES


def test_an_earlier_result_is_replaced(world: World, evaluation: Path, tmp_path: Path, run_here: Run) -> None:
    output = Path(shutil.copytree(evaluation, tmp_path / "out"))
    (output / "recovery.png").write_bytes(b"of another run")
    asked = settings(world, output) | {"recipe": {"held_out": {"max_rows": 7, "mask_seed": 5}}}
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    found = read(output)
    assert (found.num_rows, found.held_out.mask_seed) == (7, 5)
    assert not (output / "recovery.png").exists()


ERRORS = {
    "no rows": ({"rows": "nowhere"}, "nowhere: no such folder"),
    "no such rows": ({"rows": "{base}"}, "has no manifest.json"),
    "other rows": ({"rows": "{long}"}, "holds no packed rows"),
    "no base": ({"base": "nowhere"}, "nowhere"),
    "long model as base": ({"base": "{long}"}, f"has {NUM_POSITIONS}"),
    "other tokenizer": ({"base": "{other}"}, "another tokenizer"),
    "not extended": ({"long_before": "{base}"}, f"{NUM_POSITIONS}: extend it first"),
    "before of another tokenizer": ({"long_before": "{other}"}, "another tokenizer"),
    "no before": ({"long_before": "nowhere"}, "nowhere"),
    "after not extended": ({"long_after": "{base}"}, f"{NUM_POSITIONS}: extend it first"),
    "no after": ({"long_after": "nowhere"}, "nowhere"),
    "empty run": ({"long_after": "{empty}"}, "has no checkpoint yet"),
    "no curve": ({"run": "{empty}"}, "has no evaluations"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_users_error_is_one_line_and_leaves_nothing(name: str, world: World, tmp_path: Path, run_here: Run) -> None:
    spoilt, message = ERRORS[name]
    paths = {"base": world.base, "long": world.long, "empty": tmp_path / "empty", "other": tmp_path / "other"}
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    if "other tokenizer" in name or "another tokenizer" in name:
        tiny_folder(tmp_path / "other", "roberta", 3)
    named = {key: value.format(**paths) if isinstance(value, str) else value for key, value in spoilt.items()}
    code, said, warned = run_here(EvaluateConfig, evaluate, settings(world, tmp_path / "out") | named)
    assert (code, said) == (2, "")
    last = warned.rstrip("\n").split("\r")[-1].splitlines()[-1].strip()
    assert last.startswith("error: ")
    assert message in last
    assert warned.count("error: ") == 1
    assert "Traceback" not in warned
    assert "row/s" not in warned, "nothing is measured before all is known to be right"
    assert not (tmp_path / "out").exists()


def test_batch_size_is_that_of_the_settings_and_changes_nothing(
    world: World, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    predict = MlmObjective.predict

    def recorded(self: MlmObjective, batch: MlmBatch) -> MlmOutput:
        sizes.append(len(batch.input_ids))
        return predict(self, batch)

    asked = settings(world, tmp_path / "expected")
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    monkeypatch.setattr(MlmObjective, "predict", recorded)
    asked |= {"output": str(tmp_path / "out"), "runtime": {"rows_per_batch": 3}}
    assert run_here(EvaluateConfig, evaluate, asked)[0] == 0
    assert max(sizes) == 3
    measured = [read(tmp_path / name).accuracy("long_after") for name in ("out", "expected")]
    assert measured[0] == pytest.approx(measured[1])
