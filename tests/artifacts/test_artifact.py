"""Artifacts: what is written is read back; what is of another kind, format or shape is refused in one line."""

import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import artifacts
from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy
from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.artifacts.run import CheckpointState, MicroBatch, RunSummary, TrainState
from longmlm.errors import ArtifactError
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from tests.artifacts.test_metrics import at
from tests.artifacts.test_provenance import EXTENSION, RECORD
from tests.support.evaluations import FULL

PROVENANCE = Provenance(extension=EXTENSION, started_from=ModelSource(name="out/long"), trained=RECORD)
CURVE = replace(FULL.curve[-1], examples=FULL.examples)
MICRO_BATCH = MicroBatch(num_rows=4, num_processes=2, device="cpu", is_recomputed=False)
RECIPE = PretrainRecipe(num_steps=9, batch_tokens=4096, learning_rate=1e-4, masking=Masking(mask_patterns=10))
STATE = TrainState(step=3, cursor=12, tokens=9000, accuracy=37.3, micro_batch=MICRO_BATCH)
ARTIFACTS = (
    PROVENANCE,
    CheckpointState(state=STATE, recipe=RECIPE, rows_sha256="aa", rows="hf:a/b@c", precision="bf16"),
    RunSummary(state=TrainState(), train_tokens_per_second=None, num_processes=2, peak_memory_bytes=10**10),
    CURVE,
    at(3),
    FULL,
)
IDS = [type(value).__name__ for value in ARTIFACTS]


def kinds() -> list[type[Artifact]]:
    """Returns every class of artifacts of this package."""
    names = [module.name for module in pkgutil.iter_modules(artifacts.__path__, f"{artifacts.__name__}.")]
    found = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return list(dict.fromkeys(kind for kind in found if isinstance(kind, type) and issubclass(kind, Artifact)))


def changed(content: dict, **values: object) -> str:
    return json.dumps(content | values)


@pytest.mark.parametrize("value", ARTIFACTS, ids=IDS)
def test_what_is_written_is_read_back(value: Artifact, tmp_path: Path) -> None:
    artifact.write(tmp_path / "it.json", value)
    assert artifact.read(type(value), tmp_path / "it.json") == value
    assert artifact.load(type(value), json.dumps(artifact.dump(value)), "it") == value
    assert [path.name for path in tmp_path.iterdir()] == ["it.json"]


def test_a_file_begins_with_format_version_and_commit_of_its_writer(tmp_path: Path) -> None:
    artifact.write(tmp_path / "it.json", replace(PROVENANCE, longmlm="0.0.1", commit="of-an-earlier-writer"))
    content = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    assert list(content)[:3] == ["format", "longmlm", "commit"]
    assert content["format"] == 1
    assert (content["longmlm"], content["commit"]) == (artifact.version(), artifact.commit())
    assert artifact.read(Provenance, tmp_path / "it.json").longmlm == artifact.version()


def test_a_number_that_json_lacks_is_written_as_null() -> None:
    accuracy = Accuracy(accuracy=37.3, standard_error=float("inf"), loss=float("nan"), num_selected=9)
    line = replace(CURVE, held_out=replace(CURVE.held_out, whole=accuracy))
    text = json.dumps(artifact.dump(line), allow_nan=False)
    whole = artifact.load(EvaluationMetrics, text, "it").held_out.whole
    assert whole == Accuracy(accuracy=37.3, standard_error=None, loss=None, num_selected=9)


def test_the_stamp_of_a_different_writer_is_kept_when_read() -> None:
    text = changed(artifact.dump(PROVENANCE), longmlm="9.9", commit="abc")
    assert artifact.load(Provenance, text, "it") == replace(PROVENANCE, longmlm="9.9", commit="abc")


CONTENT = artifact.dump(PROVENANCE)
DAMAGED = {
    "unknown key": (changed(CONTENT, mood="good"), "mood"),
    "unknown key, nested": (changed(CONTENT, extension=CONTENT["extension"] | {"mood": "good"}), "extension.mood"),
    "unknown key, deep": (
        changed(CONTENT, trained=CONTENT["trained"] | {"held_out": {"mood": 1}}),
        "trained.held_out.mood",
    ),
    "missing key": (changed(CONTENT, started_from={}), "started_from.name"),
    "wrong type": (changed(CONTENT, trained=CONTENT["trained"] | {"steps": "3"}), "trained.steps"),
    "float for an integer": (changed(CONTENT, trained=CONTENT["trained"] | {"steps": 3.0}), "trained.steps"),
    "wrong name": (changed(CONTENT, extension=CONTENT["extension"] | {"mode": "modal"}), "extension.mode"),
    "list item": (changed(CONTENT, trained=CONTENT["trained"] | {"files_sha256": ["a", 1]}), "trained.files_sha256.1"),
    "NaN": (changed(CONTENT, trained=CONTENT["trained"] | {"accuracy": float("nan")}), "JSON"),
    "infinity": (changed(CONTENT, trained=CONTENT["trained"] | {"accuracy": float("inf")}), "JSON"),
    "no JSON": ('{"format": 1, ', "JSON"),
    "no text": (b"\xff\xfe\x00", "JSON"),
    "empty": ("", "JSON"),
    "list": ("[1]", "JSON object"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_anything_else_is_refused_in_one_line_with_file_and_key(name: str, tmp_path: Path) -> None:
    content, key = DAMAGED[name]
    path = tmp_path / Provenance.FILE
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ArtifactError) as caught:
        artifact.read(Provenance, path)
    assert str(path) in str(caught.value)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", kinds())
def test_another_format_is_refused_in_one_line_with_the_remedy(kind: type[Artifact]) -> None:
    remedy = f"{kind.REMEDY}, or use the longmlm that wrote it, 0.0.1"
    current = kind.__dataclass_fields__["format"].default
    for found in (None, 0, 7, True, "1"):
        with pytest.raises(ArtifactError) as caught:
            artifact.load(kind, json.dumps({"format": found, "longmlm": "0.0.1"}), "it")
        said = f"its format is {found!r}, this longmlm reads {current}: {remedy}"
        assert str(caught.value) == f"it cannot be used: {said}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=str(tmp_path / "nothing.json")):
        artifact.read(Provenance, tmp_path / "nothing.json")
