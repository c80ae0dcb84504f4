"""The trials of the downstream command: which values are tried, and what each result depends on."""

import itertools
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from longmlm.artifacts.artifact import Input, MadeFrom, to_toml
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.downstream.artifacts import DownstreamTrial
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.settings import Arm, DownstreamConfig, FinetuneRecipe, FinetuneRuntime, LabelledTask, Tuning
from longmlm.errors import ModelError
from longmlm.experiments.experiment import Trial, Values
from longmlm.experiments.processes import TRIAL, PlannedTrial
from longmlm.hubs.model_files import CONFIG, model_sha256
from longmlm.hubs.models import read_architecture, snapshot_of
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
    seed: int = 0
    fold: int | None = None
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


def arm_trials(config: DownstreamConfig, corpus: LabelledCorpus) -> dict[str, TrialConfig]:
    """Returns what all trials of each arm share, with commits and hashes as they are now: a later change is noticed.

    Raises ModelError for a model that does not exist or has fewer positions than its arm reads, and for a folder
    without weights; CheckpointError for a run without checkpoints.
    """
    arms, documents, digests = {}, corpus.sha256, dict[str, str]()  # several arms may name one model
    for name, own in config.arms.items():
        arm, sha256 = own, None
        if own.model is not None:
            model = model_or_best_checkpoint(own.model)
            snapshot = snapshot_of(model, own.revision, with_weights=False)
            _check_length(name, own, snapshot.folder)
            arm = replace(own, model=model, revision=snapshot.commit or own.revision)
            if snapshot.commit is None:
                sha256 = digests[model] = digests.get(model) or model_sha256(model)
        arms[name] = TrialConfig(
            name=Path(config.output).name,
            task=config.task,
            arm_name=name,
            arm=arm,
            documents_sha256=documents,
            model_sha256=sha256,
            recipe=config.recipe.tuning,
            runtime=config.runtime,
            tracking=config.tracking,
        )
    return arms


def combinations(recipe: FinetuneRecipe, arm: Arm) -> list[Values]:
    """Returns every combination of rate and epochs to try for an arm; a single empty one for TF-IDF."""
    if arm.model is None:
        return [{}]
    rates = recipe.frozen_learning_rate if arm.frozen else recipe.learning_rate
    epochs = recipe.frozen_num_epochs if arm.frozen else recipe.num_epochs
    return [{"learning_rate": rate, "num_epochs": number} for rate, number in itertools.product(rates, epochs)]


def planned_trial(config: DownstreamConfig, of_arm: TrialConfig, one: Trial) -> PlannedTrial:
    """Returns how a trial runs, with what its result depends on: the hashes of text and models, not their paths."""
    task, arm = config.task, of_arm.arm
    trial = replace(of_arm, name=f"{of_arm.name}: {one.name}", seed=one.seed, fold=one.fold, **one.values)
    settings = {"task": asdict(task), "arm": asdict(arm), "values": one.values, "seed": one.seed, "fold": one.fold}
    settings |= {"recipe": asdict(trial.recipe)} if arm.model else {}
    model = Input(arm.model, trial.model_sha256 or "") if arm.model else None
    inputs = {"documents": Input(content=trial.documents_sha256), "model": model}
    folder = one.folder_in(Path(config.output, FOLDER))
    is_finished = (folder / DownstreamTrial.FILE).is_file()
    lacks_model = config.keep_weights and arm.model and is_finished and not (folder / MODEL).is_dir()
    return PlannedTrial(
        name=one.name,
        folder=folder,
        key=MadeFrom.of(settings, inputs).key,
        files={TRIAL: to_toml(trial)},
        module=MODULE,
        arguments=(str(folder),),
        training=TRAINING,
        result=DownstreamTrial.FILE,
        missing="its model was removed" if lacks_model else "",
    )


def _check_length(name: str, arm: Arm, folder: Path) -> None:
    """Raises ModelError if the model has fewer positions than the arm reads; a trial may still refuse a few more."""
    config = read_architecture(str(folder / CONFIG))
    positions = config.get("max_position_embeddings") if config.get("position_biased_input", True) else None
    if arm.length is not None and positions and arm.length > positions:
        raise ModelError(
            f"{arm.model} has {positions} positions, but arms.{name}.length is {arm.length}: lower it, or extend the "
            "model first"
        )
