"""Trials whose documents, or whose length, are longer than the model can read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.errors import ModelError
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.training import finetuning
from tests.support.documents import separable_file
from tests.support.finetuning import model, run, settings

__all__ = ["model", "run", "settings"]

Run = Callable[[DownstreamTrialConfig], Path]


def test_a_model_that_cannot_read_the_longest_document_stops_the_trial_before_training(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = separable_file(tmp_path / "long.jsonl", num_words=60)
    task = replace(settings.task, data=replace(settings.task.data, files=(str(file),)))
    monkeypatch.setattr(finetuning, "position_offset", lambda _: -1)
    with pytest.raises(ModelError, match=rf"^{settings.arm.model} fails on an input of 33 tokens: [^\n]*$"):
        run(replace(settings, task=task, arm=replace(settings.arm, length=33)))
    assert not (Path(settings.folder) / "metrics.jsonl").exists()


def test_a_length_beyond_the_model_is_refused(settings: DownstreamTrialConfig, run: Run) -> None:
    arm = replace(settings.arm, length=33)
    with pytest.raises(ModelError, match=r"reads 32 tokens, but arms.first.length is 33"):
        run(replace(settings, arm=arm))
    assert not (Path(settings.folder) / DownstreamTrial.FILE).exists()
