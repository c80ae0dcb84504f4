"""The trials of the downstream command: which values are tried, and what each result depends on."""

import itertools
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.downstream.artifacts import DownstreamTrial
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.settings import Arm, DownstreamConfig, FinetuneRuntime, LabelledTask, Tuning
from longmlm.errors import ModelError
from longmlm.hubs.models import CONFIG, model_sha256, read_architecture, snapshot_of
from longmlm.runtime.trials import TRIAL, TRIALS, PlannedTrial, folder_name, sha256_of_json, trial_name
from longmlm.settings.pretrain import Tracker
from longmlm.training.run_folder import model_or_best_checkpoint

FOLDER, MODULE = "downstream", "longmlm.downstream.trial"
TRAINING = "checkpoints"  # in the folder of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One training of an arm: trial.toml in the trial's folder, written by the downstream command.

    The hashes are those of what the command read; `model_sha256` is that of a local folder. An arm without a model has
    no rate and no epochs.
    """

    name: str
    task: LabelledTask
    arm_name: str
    arm: Arm
    learning_rate: float | None = None
    num_epochs: int | None = None
    seed: int
    fold: int
    documents_sha256: str
    model_sha256: str | None = None
    recipe: Tuning
    runtime: FinetuneRuntime
    tracking: Tracker = field(default_factory=Tracker)

    @property
    def values(self) -> dict[str, Any]:
        """The values that were chosen from; none if nothing is trained with them."""
        if self.arm.model is None:
            return {}
        return {"learning_rate": self.learning_rate, "num_epochs": self.num_epochs}


@dataclass(frozen=True, slots=True)
class TrialInputs:
    """What trials read: the arms, with fixed checkpoints and commits, and hashes of documents and local models."""

    arms: dict[str, Arm]
    documents_sha256: str
    models_sha256: dict[str, str]


def inputs_of(config: DownstreamConfig, corpus: LabelledCorpus) -> TrialInputs:
    """Returns the inputs as they are now: all trials read the same, and a later command notices a change.

    Raises ModelError for a model that does not exist or has fewer positions than its arm reads, and for a folder
    without weights; CheckpointError for a run without checkpoints.
    """
    arms = dict(config.arms)
    models, digests = {}, dict[str, str]()  # several arms may name one model
    for name, arm in config.arms.items():
        if arm.model is None:
            continue
        model = model_or_best_checkpoint(arm.model)
        snapshot = snapshot_of(model, arm.revision, with_weights=False)
        _check_length(name, arm, snapshot.folder)
        arms[name] = replace(arm, model=model, revision=snapshot.commit or arm.revision)
        if snapshot.commit is None:
            digests[model] = digests.get(model) or model_sha256(model)
            models[name] = digests[model]
    return TrialInputs(arms, documents_sha256(corpus), models)


def documents_sha256(corpus: LabelledCorpus) -> str:
    """Returns the SHA-256 of all documents with their labels."""
    return sha256_of_json([asdict(document) for document in corpus.documents])


def trial_settings(
    config: DownstreamConfig, inputs: TrialInputs, arm: str, values: dict[str, Any], seed_and_fold: tuple[int, int]
) -> TrialConfig:
    """Returns the settings of a trial."""
    seed, fold = seed_and_fold
    name = trial_name(arm, values, seed, fold if config.task.num_folds else None)
    return TrialConfig(
        name=f"{Path(config.output).name}: {name}",
        task=config.task,
        arm_name=arm,
        arm=inputs.arms[arm],
        learning_rate=values.get("learning_rate"),
        num_epochs=values.get("num_epochs"),
        seed=seed,
        fold=fold,
        documents_sha256=inputs.documents_sha256,
        model_sha256=inputs.models_sha256.get(arm),
        recipe=config.recipe.tuning,
        runtime=config.runtime,
        tracking=config.tracking,
    )


def planned_trial(config: DownstreamConfig, trial: TrialConfig) -> PlannedTrial:
    """Returns the trial with what its result depends on; paths of text and models are none: their hashes are."""
    task, arm, data = trial.task, trial.arm, trial.task.data
    is_local = data.dataset is None or Path(data.dataset).is_dir()
    files = dict.fromkeys(("files", "dev_files", "test_files"), ()) | {"dataset": None if is_local else data.dataset}
    depends_on = {
        "task": asdict(task) | {"data": asdict(data) | files},
        "arm": asdict(arm) | {"model": None if trial.model_sha256 else arm.model},
        "recipe": asdict(trial.recipe) if arm.model else None,
        "values": [trial.values, trial.seed, trial.fold],
    }
    output, values = Path(config.output) / FOLDER / TRIALS, trial.values
    folder = output / trial.arm_name / folder_name(values) / f"seed-{trial.seed}-fold-{trial.fold}"
    needs_model = config.keep_weights and arm.model is not None and (folder / DownstreamTrial.FILE).is_file()
    return PlannedTrial(
        name=trial.name.partition(": ")[2],
        folder=folder,
        key={
            "settings": sha256_of_json(depends_on),
            "documents": trial.documents_sha256,
            "model": trial.model_sha256 or "",
        },
        files={TRIAL: to_toml(trial)},
        module=MODULE,
        arguments=(str(folder),),
        training=TRAINING,
        result=DownstreamTrial.FILE,
        lacks="its model was removed" if needs_model and not (folder / MODEL).is_dir() else "",
    )


def combinations(config: DownstreamConfig, arm: str) -> list[dict[str, Any]]:
    """Returns every combination of rate and epochs to try for an arm; a single empty one for TF-IDF."""
    recipe, is_frozen = config.recipe, config.arms[arm].frozen
    if config.arms[arm].model is None:
        return [{}]
    rates = recipe.frozen_learning_rate if is_frozen else recipe.learning_rate
    epochs = recipe.frozen_num_epochs if is_frozen else recipe.num_epochs
    return [{"learning_rate": rate, "num_epochs": number} for rate, number in itertools.product(rates, epochs)]


def seeds_and_folds(config: DownstreamConfig) -> list[tuple[int, int]]:
    """Returns the seed and the fold of each trial with the chosen values, first those with which they are chosen."""
    return list(itertools.product(config.recipe.seeds, range(config.task.num_folds or 1)))


def num_trials(config: DownstreamConfig) -> int:
    """Returns how many trials there are in all."""
    repeated = len(seeds_and_folds(config)) - 1
    return sum(len(combinations(config, arm)) + repeated for arm in config.arms)


def _check_length(name: str, arm: Arm, folder: Path) -> None:
    """Raises ModelError if the model has fewer positions than the arm reads; a trial may still refuse a few more."""
    config = read_architecture(str(folder / CONFIG))
    positions = config.get("max_position_embeddings") if config.get("position_biased_input", True) else None
    if arm.length is not None and positions and arm.length > positions:
        raise ModelError(
            f"{arm.model} has {positions} positions, but arms.{name}.length is {arm.length}: lower it, or extend the "
            "model first"
        )
