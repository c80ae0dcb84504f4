"""evaluation.json: signed, refused when altered, and what follows from its figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.errors import ArtifactError
from tests.artifacts.test_artifact import EVALUATION, MEASURED


def with_accuracy(evaluation: Evaluation, **accuracies: float | None) -> Evaluation:
    """Returns the evaluation with these accuracies, by view, and no other view."""
    whole = {name: replace(MEASURED.whole, accuracy=accuracy) for name, accuracy in accuracies.items()}
    return replace(evaluation, measured={name: replace(MEASURED, whole=of_view) for name, of_view in whole.items()})


@pytest.mark.parametrize("changes", [{"num_rows": 26}, {"curve": ()}, {"measured": {}}, {"sha256": ""}])
def test_an_altered_file_is_refused_unless_it_is_signed_again(tmp_path: Path, changes: dict) -> None:
    path, changed = tmp_path / Evaluation.FILE, replace(EVALUATION, **changes)
    artifact.write(path, EVALUATION)
    assert read_evaluation(path) == EVALUATION
    artifact.write(path, changed)
    with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
        read_evaluation(path)
    artifact.write(path, changed.signed())
    assert read_evaluation(path).num_rows == changed.num_rows


def test_recovery_and_the_gain_of_context_follow_from_the_measured_views() -> None:
    recovered = with_accuracy(EVALUATION, base_cut=30.5, base_windows=30.5, long_after=32.0)
    assert (recovered.is_recovered, recovered.context_gain) == (True, 1.5)
    assert with_accuracy(EVALUATION, base_cut=30.5, base_windows=30.5, long_after=30.49).is_recovered is False
    untrained = with_accuracy(EVALUATION, base_cut=30.5, base_windows=30.5)
    assert (untrained.is_recovered, untrained.context_gain, untrained.latest_view) == (None, None, "long_before")
    empty = replace(MEASURED, whole=Accuracy(None, None, None, 0))
    unmeasured = replace(recovered, measured={**recovered.measured, "long_after": empty})
    assert (unmeasured.is_recovered, unmeasured.accuracy("long_after")) == (None, None)
