"""evaluation.json: signed, refused when altered, and what follows from its figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.errors import ArtifactError
from tests.support.evaluations import FULL


def with_accuracy(**accuracies: float | None) -> Evaluation:
    """Returns an evaluation with these accuracies, by view, and no other view."""
    measured = FULL.measured["long_after"]
    whole = {name: replace(measured.whole, accuracy=accuracy) for name, accuracy in accuracies.items()}
    return replace(FULL, measured={name: replace(measured, whole=of_view) for name, of_view in whole.items()})


@pytest.mark.parametrize("changes", [{"num_rows": 26}, {"curve": ()}, {"measured": {}}, {"sha256": ""}])
def test_an_altered_file_is_refused_unless_it_is_signed_again(tmp_path: Path, changes: dict) -> None:
    path, changed = tmp_path / Evaluation.FILE, replace(FULL, **changes)
    artifact.write(path, FULL)
    assert read_evaluation(path) == FULL
    artifact.write(path, changed)
    with pytest.raises(ArtifactError, match=r"evaluation\.json.*evaluate stage"):
        read_evaluation(path)
    artifact.write(path, changed.signed())
    assert read_evaluation(path).num_rows == changed.num_rows


def test_recovery_and_the_gain_of_context_follow_from_the_measured_views() -> None:
    recovered = with_accuracy(base_cut=30.5, base_chunks=30.5, long_after=32.0)
    assert (recovered.is_recovered, recovered.context_gain.points) == (True, 1.5)
    error = recovered.recovery.standard_error
    assert error > 0
    for errors, is_recovered in ((1.99, True), (2.01, False)):  # in standard errors below base_cut
        below = with_accuracy(base_cut=30.5, base_chunks=30.5, long_after=30.5 - errors * error)
        assert (below.is_recovered, below.is_worse_than_chunks) == (is_recovered, not is_recovered)
    untrained = with_accuracy(base_cut=30.5, base_chunks=30.5)
    assert (untrained.is_recovered, untrained.context_gain, untrained.latest_view) == (None, None, "long_before")
    unmeasured = with_accuracy(base_cut=30.5, base_chunks=30.5, long_after=None)
    assert (unmeasured.is_recovered, unmeasured.accuracy("long_after")) == (None, None)
