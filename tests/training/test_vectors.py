"""Vectors of frozen encoders, which trials share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification

from longmlm.model.classification import ClassificationObjective
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.training import vectors
from longmlm.training.vectors import write_vectors
from tests.support.finetuning import elsewhere, model, result_of, run, settings

__all__ = ["model", "run", "settings"]

Run = Callable[[DownstreamTrialConfig], Path]


@pytest.mark.parametrize("reads", ["first", "chunks"])
def test_trials_share_the_vectors_of_a_frozen_encoder(
    settings: DownstreamTrialConfig, run: Run, reads: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arm = replace(settings.arm, frozen=True, reads=reads, length=12)
    alone, first, second, damaged = (
        elsewhere(settings, name, arm=arm, seed=seed, vectors=vectors and str(tmp_path / "vectors.safetensors"))
        for name, seed, vectors in (("alone", 43, ""), ("first", 42, "v"), ("second", 43, "v"), ("damaged", 43, "v"))
    )
    encoded = []
    compute = ClassificationObjective._encoded
    monkeypatch.setattr(ClassificationObjective, "_encoded", lambda *args: encoded.append(1) or compute(*args))
    counts = {}
    for one in (alone, first, second):
        encoded.clear()
        run(one)
        counts[one.folder] = len(encoded)
    (tmp_path / "vectors-no.safetensors").write_bytes(b"damaged")
    run(damaged)
    num_tested = len(result_of(Path(second.folder)).predictions)
    assert counts[second.folder] <= num_tested + 2 < counts[first.folder]
    results = [result_of(Path(one.folder)) for one in (alone, second, damaged)]
    for other in results[1:]:
        assert (other.dev_scores, other.predictions) == (results[0].dev_scores, results[0].predictions)


def test_a_full_disk_is_an_error_of_the_disk_and_leaves_the_earlier_file(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    classifier = AutoModelForSequenceClassification.from_pretrained(model)
    objective = ClassificationObjective(classifier, is_frozen=True)
    objective.cached = {"a": torch.ones(1, 2)}
    file = tmp_path / "vectors" / "one.safetensors"
    write_vectors(str(file), objective)
    file = file.with_name("one-no.safetensors")
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    objective.cached["b"] = torch.ones(1, 2)
    monkeypatch.setattr(vectors, "save_file", fail)
    with pytest.raises(OSError, match="No space left on device"):
        write_vectors(str(file), objective)
    assert file.read_bytes() == before
