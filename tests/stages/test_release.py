"""The release stage as a user runs it: what it writes, prints and refuses."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, TrainingRecord
from longmlm.folders import verify
from longmlm.hubs import licences
from longmlm.hubs.model_files import weights_sha256
from longmlm.model.loading import LoadedModel
from longmlm.release import build, reload
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.settings.release import ReleaseConfig
from longmlm.stages.release import release
from tests.support.evaluations import forge
from tests.support.foreign import without_literals
from tests.support.tiny import (
    LONG_POSITIONS,
    NUM_POSITIONS,
    World,
    accuracy_of,
    measured_on,
    release_settings,
    tiny_folder,
)

NOT_RECOVERED = "**Not recovered"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def unrecovered(evaluation: Path, tmp_path: Path) -> Path:
    """An evaluation in which the long model is worse than its base."""
    copy = Path(shutil.copytree(evaluation, tmp_path / "unrecovered"))
    forge(copy, "base_chunks", accuracy=99.0)
    return copy


def test_released_folder_is_complete_proved_by_another_process_and_explained(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run
) -> None:
    output = tmp_path / "out" / "tiny-40"
    code, said, warned = run_here(ReleaseConfig, release, release_settings(world, evaluation, output))
    assert (code, warned) == (0, "")
    lines = said.splitlines()
    assert "transformers" in lines[0]
    text_tokens = int(lines[1].split("text of ")[1].split()[0])
    assert NUM_POSITIONS < text_tokens <= LONG_POSITIONS
    assert lines[2] == f"released: {output}"
    stock = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    beside = {"README.md", "longmlm.json", "blocks.png", "manifest.json"}
    assert {path.name for path in output.iterdir()} == stock | beside
    assert verify(output)["files"].keys() == stock | beside - {"manifest.json"}
    card = ModelCard.load(output / "README.md")
    assert card.data.license == "apache-2.0"
    assert NOT_RECOVERED not in card.text
    assert not list(output.parent.glob("*.partial"))
    stored, trained = (load_file(folder / "model.safetensors") for folder in (output, world.trained))
    assert all(torch.equal(stored[name], trained[name]) for name in trained)


def test_run_folder_stands_for_its_best_checkpoint(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, run_folder: Path, here: None
) -> None:
    asked = release_settings(world, evaluation, tmp_path / "out") | {
        "model": str(run_folder),
        "recipe": {"weights": "bf16"},
    }
    code, _, warned = run_here(ReleaseConfig, release, asked)
    assert (code, warned) == (0, "")
    about = json.loads((tmp_path / "out" / "longmlm.json").read_text())
    trained = {"row_length": LONG_POSITIONS, "steps": 1, "tokens": 100, "accuracy": 9.0}
    assert trained.items() <= about["trained"].items()
    stored, trained = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", world.trained))
    assert all(torch.equal(stored[name], trained[name].bfloat16()) for name in trained)
    assert "1 step, 100 tokens" in (tmp_path / "out" / "README.md").read_text()


def test_model_that_did_not_recover_is_released_only_where_allowed_and_the_card_says_so(
    world: World, unrecovered: Path, tmp_path: Path, run_here: Run, here: None
) -> None:
    asked = release_settings(world, unrecovered, tmp_path / "out")
    code, said, warned = run_here(ReleaseConfig, release, asked)
    assert (code, said) == (2, "")
    assert re.search(r"base_chunks 99\.00 %.*allow_unrecovered = true in \[release\.recipe\]", warned)
    assert not (tmp_path / "out").exists()
    allowed = {"allow_unrecovered": True, "allow_worse_short_texts": True}
    assert run_here(ReleaseConfig, release, asked | {"recipe": allowed})[0] == 0
    assert NOT_RECOVERED in (tmp_path / "out" / "README.md").read_text()


def test_model_from_scratch_is_released_without_an_evaluation(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, here: None
) -> None:
    model = tiny_folder(tmp_path / "scratch", "roberta", 1, LONG_POSITIONS)
    accuracy = accuracy_of(model, world.rows)
    measured = measured_on(world.rows)
    trained = TrainingRecord(row_length=LONG_POSITIONS, steps=7, tokens=2_800, accuracy=accuracy, **measured)
    artifact.write(model / Provenance.FILE, Provenance(trained=trained))
    asked = release_settings(world, evaluation, tmp_path / "out") | {"model": str(model)}
    del asked["evaluation"]
    code, _, warned = run_here(ReleaseConfig, release, asked)
    assert (code, warned) == (0, "")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "from scratch" in card.text
    assert card.data.eval_results[0].metric_value == round(accuracy, 2)
    assert not list((tmp_path / "out").glob("*.png"))


def test_nothing_is_left_when_what_was_written_is_not_what_was_trained(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    faithful, was_there = build.export, []

    def unfaithful(trained: LoadedModel, weights: str, folder: Path, max_shard_size: str | None) -> None:
        faithful(trained, weights, folder, max_shard_size)
        stored = load_file(folder / "model.safetensors")
        stored["roberta.encoder.layer.1.output.dense.bias"][0] += 0.01
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        was_there.extend(path.name for path in folder.iterdir())

    monkeypatch.setattr(build, "export", unfaithful)
    asked = release_settings(world, evaluation, tmp_path / "out" / "tiny")
    code, said, warned = run_here(ReleaseConfig, release, asked)
    assert (code, said) == (2, "")
    assert re.match("error: .*outputs differ by ", warned)
    assert warned.count("\n") == 1
    assert "model.safetensors" in was_there
    assert list((tmp_path / "out").iterdir()) == []


ERRORS = {
    "no model": ({"model": "nowhere"}, "nowhere"),
    "untrained": ({"model": "{long}"}, "was not trained by longmlm"),
    "empty run": ({"model": "{empty}"}, "has no checkpoint yet"),
    "no evaluation": ({"evaluation": None}, "set evaluation to its folder"),
    "evaluation not there": ({"evaluation": "nowhere"}, "evaluation.json does not exist"),
    "other weights": ({"model": "{nudged}"}, "was measured on other weights"),
    "other rows": ({"rows": "{long}"}, "holds no packed rows"),
    "no rows": ({"rows": "nowhere"}, "nowhere: no such folder"),
    "output there": ({"output": "{empty}"}, "exists and is not a release: move it away, or name another folder"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_users_error_is_one_line_and_leaves_nothing(
    name: str, world: World, evaluation: Path, tmp_path: Path, run_here: Run
) -> None:
    spoilt, message = ERRORS[name]
    paths = {"long": world.long, "empty": tmp_path / "empty", "nudged": tmp_path / "nudged"}
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    if name == "other weights":
        shutil.copytree(world.trained, tmp_path / "nudged")
        weights = load_file(tmp_path / "nudged" / "model.safetensors")
        weights["lm_head.bias"] += 1e-6
        save_file(weights, tmp_path / "nudged" / "model.safetensors", {"format": "pt"})
        assert weights_sha256(tmp_path / "nudged") != weights_sha256(world.trained)
    named = {key: value.format(**paths) if isinstance(value, str) else value for key, value in spoilt.items()}
    asked = release_settings(world, evaluation, tmp_path / "out" / "tiny") | named
    before = sorted(tmp_path.rglob("*"))
    given = {key: value for key, value in asked.items() if value is not None}
    code, said, warned = run_here(ReleaseConfig, release, given)
    assert (code, said) == (2, "")
    assert warned.startswith("error: ")
    assert warned.count("\n") == 1
    assert message in warned
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "stage.toml"] == before


def test_no_text_of_the_base_model_or_of_a_name_is_run(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    code = f"open({str(planted)!r}, 'w').close()"
    fenced = f"\n\n## Use\n\n```python\n{code}\n```\n"
    front_matter = yaml.safe_dump({"license": "other", "license_name": f"mine{fenced}", "license_link": fenced})
    monkeypatch.setattr(licences, "model_card_of", lambda *_: f"---\n{front_matter}---\n")
    output = tmp_path / f"""a", revision={code.replace("/", "%")}, b="```{code.replace("/", "%")}"""
    asked = release_settings(world, evaluation, output)
    asked["card"] = {"title": fenced, "hardware": fenced}
    status, said, warned = run_here(ReleaseConfig, release, asked)
    assert (status, warned, planted.exists()) == (0, "", False)
    card = (output / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```\n", card, re.DOTALL)
    assert without_literals(block) == without_literals(LoadingCode("load_model.md").on_card(Address("x"))[10:-4])
    assert verify(output)["released_from"] and "released: " in said


def test_release_as_a_sentence_transformer_is_one_and_its_card_runs(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run
) -> None:
    output = tmp_path / "out" / "tiny-40"
    recipe = {"recipe": {"sentence_transformer": "cls"}}
    code, said, warned = run_here(ReleaseConfig, release, release_settings(world, evaluation, output) | recipe)
    assert (code, warned) == (0, "")
    files = {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
    assert files <= verify(output)["files"].keys()
    assert said.splitlines()[0] == f"files carried over: {', '.join(sorted(files))}"
    assert "SentenceTransformer(" in (output / "README.md").read_text()
    assert json.loads((output / "sentence_bert_config.json").read_text())["max_seq_length"] == LONG_POSITIONS
    (output / "modules.json").write_text("[]")
    with pytest.raises(Exception, match="modules|module"):
        reload.run_codes(str(output), [LoadingCode("load_sentences.md").runnable])
