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


@pytest.mark.parametrize(
    ("lengths", "bases"),
    [({}, {"base_cut": 99.0, "base_chunks": 30.5}), ({"base_positions": FULL.row_length}, {"base_cut": 30.5})],
)
def test_recovered_is_not_below_the_base_model_on_the_same_tokens(lengths: dict, bases: dict) -> None:
    recovered = replace(with_accuracy(**bases, long_after=32.0), **lengths)
    assert (recovered.is_recovered, recovered.recovery.points) == (True, 1.5)
    error = recovered.recovery.standard_error
    assert error > 0
    for errors, is_recovered in ((1.99, True), (2.01, False)):  # in standard errors below
        below = replace(with_accuracy(**bases, long_after=30.5 - errors * error), **lengths)
        assert below.is_recovered == is_recovered
    untrained = replace(with_accuracy(**bases), **lengths)
    assert (untrained.is_recovered, untrained.latest_view) == (None, "long_before")
    unmeasured = with_accuracy(base_cut=30.5, base_chunks=30.5, long_after=None)
    assert (unmeasured.is_recovered, unmeasured.accuracy("long_after")) == (None, None)
