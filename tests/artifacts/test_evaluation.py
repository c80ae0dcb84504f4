"""evaluation.json: signed, and refused when altered."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.evaluation import Evaluation, EvaluationSources, read_evaluation
from longmlm.errors import ArtifactError
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.masking import HeldOut

WHOLE = Accuracy(accuracy=30.5, standard_error=0.5, loss=3.25, num_selected=100)
NOTHING = Accuracy(None, None, None, 0)
EVALUATION = Evaluation(
    row_length=40,
    base_positions=16,
    position_starts=(0, 16, 32),
    num_rows=25,
    recipe=EvaluateRecipe(held_out=HeldOut(max_rows=25)),
    precision="bf16",
    sources=EvaluationSources(rows="out/rows", rows_sha256="1" * 64, base="out/base", before="out/long"),
    measured={
        "base_cut": Measured(WHOLE, (WHOLE, NOTHING)),
        "base_windows": Measured(WHOLE, (WHOLE, WHOLE)),
        "long_after": Measured(replace(WHOLE, accuracy=32.0), (WHOLE, WHOLE)),
    },
    curve=(),
).signed()


def test_altered_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    artifact.write(path, EVALUATION)
    evaluation = read_evaluation(path)
    for changed in (
        replace(evaluation, num_rows=26),
        replace(evaluation, sha256=""),
        replace(evaluation, position_starts=(0,)),
    ):
        artifact.write(path, changed)
        with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
            read_evaluation(path)
    artifact.write(path, replace(evaluation, num_rows=26).signed())
    assert read_evaluation(path).num_rows == 26


def test_accuracies_are_absent_before_training_and_without_selected_tokens(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    artifact.write(path, EVALUATION)
    evaluation = read_evaluation(path)
    assert (evaluation.is_recovered, evaluation.context_gain) == (True, 1.5)
    measured = dict(evaluation.measured)
    after = measured.pop("long_after")
    untrained = replace(evaluation, measured=measured)
    assert (untrained.is_recovered, untrained.context_gain, untrained.latest_view) == (None, None, "long_before")
    empty = replace(after, whole=Accuracy(None, None, None, 0))
    unmeasured = replace(evaluation, measured={**measured, "long_after": empty})
    assert (unmeasured.is_recovered, unmeasured.accuracy("long_after")) == (None, None)
    lost = replace(after, whole=replace(after.whole, accuracy=30.49))
    assert replace(evaluation, measured={**measured, "long_after": lost}).is_recovered is False


def test_file_has_its_format_and_none_for_what_was_not_measured(tmp_path: Path) -> None:
    artifact.write(tmp_path / Evaluation.FILE, EVALUATION)
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["format"] == 1
    assert content["measured"]["base_cut"]["blocks"][1] == asdict(NOTHING)


def test_unknown_key_of_a_nested_entry_is_refused(tmp_path: Path) -> None:
    artifact.write(tmp_path / Evaluation.FILE, EVALUATION)
    content = json.loads((tmp_path / Evaluation.FILE).read_text())
    content["measured"]["base_cut"]["blocks"][1]["mood"] = "good"
    with pytest.raises(ArtifactError, match=r"measured\.base_cut\.blocks\.1\.mood"):
        artifact.load(Evaluation, json.dumps(content), "it")
