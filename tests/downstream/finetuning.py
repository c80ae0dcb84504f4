"""Trials on documents that a tiny model can learn, and what tests read of their folders."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.downstream.artifacts import DownstreamTrial
from longmlm.downstream.documents import read_labelled
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.settings import Arm, FinetuneRuntime, LabelledData, LabelledTask, Tuning
from longmlm.downstream.trial import run_trial
from longmlm.experiments.processes import TRIAL
from tests.downstream.labelled import labelled_file, separable_file
from tests.support.tiny import tiny_folder, with_fresh_process_state

LENGTH = 24  # of a window, special tokens included
Run = Callable[..., Path]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that reads 32 tokens, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("finetuned") / "model", "bert", 0, num_positions=32)


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> TrialConfig:
    """A trial whose documents each have the cue of their label."""
    data = LabelledData(files=(str(separable_file(tmp_path / "documents.jsonl")),))
    return TrialConfig(
        name="out: first",
        task=LabelledTask(kind="classification", data=data, dev_fraction=0.2, test_fraction=0.25),
        arm_name="first",
        arm=Arm(model=str(model)),
        learning_rate=5e-3,
        num_epochs=6,
        seed=1,
        documents_sha256="",
        recipe=Tuning(documents_per_step=4, patience=6, precision="no"),
        runtime=FinetuneRuntime(num_threads=1),
    )


@pytest.fixture
def labelling(settings: TrialConfig, tmp_path: Path) -> TrialConfig:
    data = LabelledData(files=(str(labelled_file(tmp_path / "spans.jsonl")),))
    task = LabelledTask(kind="labelling", data=data, dev_fraction=0.2, test_fraction=0.25)
    arm = replace(settings.arm, reads="chunks", length=LENGTH)
    return replace(settings, task=task, arm=arm, recipe=replace(settings.recipe, documents_per_step=2), num_epochs=8)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the process of a trial in this one, on the documents as they are, and returns its folder."""
    monkeypatch.setattr(os, "environ", os.environ.copy())  # a trial changes it

    def finetuned(config: TrialConfig, name: str = "trial") -> Path:
        folder = tmp_path / name
        sha256 = config.documents_sha256 or read_labelled(config.task).sha256
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRIAL).write_text(to_toml(replace(config, documents_sha256=sha256)), encoding="utf-8")
        with_fresh_process_state()
        try:
            run_trial(folder)
        finally:
            with_fresh_process_state()
        return folder

    return finetuned


def result_of(folder: Path) -> DownstreamTrial:
    return artifact.read(DownstreamTrial, folder / DownstreamTrial.FILE)


def accuracy_of(trial: DownstreamTrial) -> float:
    return 100 * sum(one.truth == one.predicted for one in trial.predictions) / len(trial.predictions)
