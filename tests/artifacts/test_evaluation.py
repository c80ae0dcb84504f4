"""evaluation.json: signed, upgraded from the format before versions, refused when altered."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy, FilledMask
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.errors import ArtifactError
from longmlm.settings.masking import HeldOut

WHOLE = {"accuracy": 30.5, "standard_error": 0.5, "loss": 3.25, "num_selected": 100}
NOTHING = {"accuracy": None, "standard_error": None, "loss": None, "num_selected": 0}
MASKING = {"selected_fraction": 0.15, "masked_share": 0.8, "random_share": 0.1, "mask_patterns": None}
BEFORE_VERSIONS = {
    "row_length": 40,
    "block": 16,
    "position_starts": [0, 16, 32],
    "num_rows": 25,
    "mask_seed": 1789,
    "held_out": {"max_rows": 25, "mask_seed": 1789, "rows_per_batch": 16, "masking": MASKING},
    "sources": {
        "rows": "out/rows",
        "base": "out/base",
        "before": "out/long",
        "rows_sha256": "1" * 64,
        "after": "out/run",
        "after_sha256": "2" * 64,
        "precision": "bf16",
    },
    "measured": {
        "base_cut": {"whole": WHOLE, "blocks": [WHOLE, NOTHING], "positions": [WHOLE, NOTHING]},
        "base_windows": {"whole": WHOLE, "blocks": [WHOLE, WHOLE], "positions": [WHOLE, WHOLE]},
        "long_after": {"whole": {**WHOLE, "accuracy": 32.0}, "blocks": [WHOLE, WHOLE], "positions": [WHOLE, WHOLE]},
    },
    "gains": {"recovered": True, "context": 1.5},
    "curve": [
        {
            "step": 20,
            "tokens": 12_345,
            "held_out": {"whole": WHOLE, "blocks": [WHOLE, WHOLE]},
            "base_cut": 30.0,
            "recovered_at_step": 20,
            "recovered_at_tokens": 12_345,
        }
    ],
    "examples": [
        {"row_id": 7, "place": 38, "before": "a", "after": "b", "truth": " c", "guesses": [[" c", 0.5], [" d", 0.25]]}
    ],
}


def write_before_versions(path: Path, **changes: object) -> None:
    """Writes the file as the version without formats did, and then changes it."""
    sha256 = hashlib.sha256(json.dumps(BEFORE_VERSIONS, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**BEFORE_VERSIONS, "sha256": sha256, **changes}, indent=2))


def test_file_from_before_versions_is_read_with_all_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_before_versions(path)
    evaluation = read_evaluation(path)
    assert (evaluation.base_positions, evaluation.precision, evaluation.num_rows) == (16, "bf16", 25)
    assert evaluation.held_out == HeldOut(max_rows=25)
    assert (evaluation.sources.after, evaluation.sources.after_sha256) == ("out/run", "2" * 64)
    assert evaluation.measured["base_cut"].blocks == (Accuracy(30.5, 0.5, 3.25, 100), Accuracy(None, None, None, 0))
    assert (evaluation.is_recovered, evaluation.context_gain) == (True, 1.5)
    assert (evaluation.curve[0].step, evaluation.curve[0].recovered_at_tokens) == (20, 12_345)
    assert evaluation.examples == (FilledMask(7, 38, "a", "b", " c", ((" c", 0.5), (" d", 0.25))),)
    assert evaluation == read_evaluation(path)
    artifact.write(tmp_path / "again.json", evaluation)
    again = read_evaluation(tmp_path / "again.json")
    assert again == replace(evaluation, longmlm=again.longmlm, commit=again.commit)


@pytest.mark.parametrize("changes", [{"num_rows": 26}, {"gains": {}}, {"curve": []}, {"sha256": ""}])
def test_altered_file_from_before_versions_is_refused(tmp_path: Path, changes: dict) -> None:
    path = tmp_path / "evaluation.json"
    write_before_versions(path, **changes)
    with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
        read_evaluation(path)


def test_altered_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_before_versions(path)
    evaluation = read_evaluation(path)
    for changed in (replace(evaluation, num_rows=26), replace(evaluation, sha256=""), replace(evaluation, curve=())):
        artifact.write(path, changed)
        with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
            read_evaluation(path)
    artifact.write(path, replace(evaluation, num_rows=26).signed())
    assert read_evaluation(path).num_rows == 26


def test_file_that_does_not_say_how_it_was_measured_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_before_versions(path)
    content = json.loads(path.read_text())
    del content["held_out"]
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
        read_evaluation(path)


def test_accuracies_are_absent_before_training_and_without_selected_tokens(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_before_versions(path)
    evaluation = read_evaluation(path)
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
    write_before_versions(tmp_path / "old.json")
    artifact.write(tmp_path / Evaluation.FILE, read_evaluation(tmp_path / "old.json"))
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["format"] == 1
    assert content["measured"]["base_cut"]["blocks"][1] == NOTHING


def test_unknown_key_of_a_nested_entry_is_refused(tmp_path: Path) -> None:
    write_before_versions(tmp_path / "old.json")
    artifact.write(tmp_path / Evaluation.FILE, read_evaluation(tmp_path / "old.json"))
    content = json.loads((tmp_path / Evaluation.FILE).read_text())
    content["measured"]["base_cut"]["blocks"][1]["mood"] = "good"
    with pytest.raises(ArtifactError, match=r"measured\.base_cut\.blocks\.1\.mood"):
        artifact.load(Evaluation, json.dumps(content), "it")
