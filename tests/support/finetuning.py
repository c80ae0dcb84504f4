"""Trials on documents that a tiny model can learn, and what tests read of their folders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.data.labelled import read_labelled
from longmlm.runtime.trials import TRIAL
from longmlm.settings.downstream import Arm, DownstreamTrialConfig, FinetuneRecipe, LabelledData, LabelledTask
from longmlm.settings.pretrain import PretrainRuntime
from longmlm.stages.finetune import finetune
from longmlm.trials.downstream_planned import documents_sha256
from tests.support.documents import labelled_file, pairs_file, separable_file
from tests.support.tiny import tiny_folder, with_fresh_process_state

RECIPE = FinetuneRecipe(
    learning_rate=(5e-3,), num_epochs=(6,), documents_per_step=4, patience=6, precision="no", seeds=(1,)
)
RUNTIME = PretrainRuntime(rows_per_micro_batch=4, num_threads=1)
LENGTH = 24  # of a chunk, special tokens included


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that reads 32 tokens, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("finetuned") / "model", "bert", 0, num_positions=32)


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> DownstreamTrialConfig:
    """A trial whose documents each have the cue of their label."""
    file = separable_file(tmp_path / "documents.jsonl")
    return DownstreamTrialConfig(
        folder=str(tmp_path / "trial"),
        task=LabelledTask(
            kind="classification", data=LabelledData(files=(str(file),)), dev_fraction=0.2, test_fraction=0.25
        ),
        arm_name="first",
        arm=Arm(model=str(model)),
        learning_rate=RECIPE.learning_rate[0],
        num_epochs=RECIPE.num_epochs[0],
        seed=1,
        fold=0,
        settings_sha256="0" * 64,
        documents_sha256="",
        recipe=RECIPE,
        runtime=RUNTIME,
    )


@pytest.fixture
def labelling(settings: DownstreamTrialConfig, tmp_path: Path) -> DownstreamTrialConfig:
    data = LabelledData(files=(str(labelled_file(tmp_path / "spans.jsonl")),))
    task = LabelledTask(kind="labelling", data=data, dev_fraction=0.2, test_fraction=0.25)
    arm = replace(settings.arm, reads="chunks", length=LENGTH)
    recipe = replace(settings.recipe, documents_per_step=2)
    return replace(settings, task=task, arm=arm, recipe=recipe, num_epochs=8)


@pytest.fixture
def similarity(settings: DownstreamTrialConfig, tmp_path: Path) -> DownstreamTrialConfig:
    data = LabelledData(files=(str(pairs_file(tmp_path / "pairs.jsonl")),))
    task = LabelledTask(kind="similarity", data=data, dev_fraction=0.2, test_fraction=0.25)
    runtime, recipe = replace(RUNTIME, rows_per_micro_batch=None), replace(settings.recipe, patience=10)
    recipe = replace(recipe, dropout=0.0)  # so that learning does not depend on its draws
    return replace(settings, task=task, recipe=recipe, runtime=runtime, learning_rate=1e-2, num_epochs=10)


@pytest.fixture
def run() -> Callable[[DownstreamTrialConfig], Path]:
    """Runs the process of a trial in this one, on the documents as they are, and returns its folder."""

    def finetuned(config: DownstreamTrialConfig) -> Path:
        folder = Path(config.folder)
        sha256 = config.documents_sha256 or documents_sha256(read_labelled(config.task))
        config = replace(config, documents_sha256=sha256)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRIAL).write_text(to_toml(config), encoding="utf-8")
        with_fresh_process_state()
        try:
            finetune(folder)
        finally:
            with_fresh_process_state()
        return folder

    return finetuned


def result_of(folder: Path) -> DownstreamTrial:
    return artifact.read(DownstreamTrial, folder / DownstreamTrial.FILE)


def elsewhere(config: DownstreamTrialConfig, name: str, **changes: object) -> DownstreamTrialConfig:
    """Returns the trial in another folder, with some other settings."""
    return replace(config, folder=str(Path(config.folder).with_name(name)), **changes)


def accuracy_of(trial: DownstreamTrial) -> float:
    return 100 * sum(one.labels == one.predicted for one in trial.predictions) / len(trial.predictions)


def probabilities_of(trial: DownstreamTrial) -> list[float]:
    return [chance for one in trial.predictions for chance in one.probabilities]
