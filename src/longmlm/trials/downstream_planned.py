"""The settings of the trials of the downstream command: which values are tried, and what each result depends on."""

import itertools
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from longmlm.data.labelled import LabelledCorpus
from longmlm.errors import ModelError
from longmlm.hubs.models import CONFIG, model_sha256, read_architecture, snapshot_of
from longmlm.runtime.trials import TRIALS, folder_name, sha256_of_json, trial_name
from longmlm.settings.downstream import HEAD_TOKENS, Arm, DownstreamConfig, DownstreamTrialConfig, FinetuneRecipe
from longmlm.settings.pretrain import Tracking
from longmlm.training.run_folder import model_or_best_checkpoint

FOLDER, VECTORS = "downstream", "vectors"
SETTINGS_OF_RESULT = ("task", "arm", "learning_rate", "num_epochs", "seed", "fold", "recipe", "num_explained")


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
        check_length(name, arm, snapshot.folder)
        arms[name] = replace(arm, model=model, revision=snapshot.commit or arm.revision)
        if snapshot.commit is None:
            digests[model] = digests.get(model) or model_sha256(model)
            models[name] = digests[model]
    return TrialInputs(arms, documents_sha256(corpus), models)


def documents_sha256(corpus: LabelledCorpus) -> str:
    """Returns the SHA-256 of all documents with their labels."""
    return sha256_of_json([asdict(document) for document in corpus.documents])


def check_length(name: str, arm: Arm, folder: Path) -> None:
    """Raises ModelError if the model has fewer positions than the arm reads; a trial may still refuse a few more."""
    config = read_architecture(str(folder / CONFIG))
    positions = config.get("max_position_embeddings") if config.get("position_biased_input", True) else None
    if arm.length is not None and positions and arm.length > positions:
        raise ModelError(
            f"{arm.model} has {positions} positions, but arms.{name}.length is {arm.length}: lower it, or extend the "
            "model first"
        )
    too_few = HEAD_TOKENS + 2
    if arm.reads == "head-tail" and arm.length is None and positions and positions <= too_few:
        raise ModelError(
            f"arms.{name} reads head-tail, which needs more than {too_few} positions, but {arm.model} has {positions}: "
            "extend the model first, or choose another reads"
        )


def planned_trial(
    config: DownstreamConfig, inputs: TrialInputs, arm: str, values: dict[str, Any], seed_and_fold: tuple[int, int]
) -> DownstreamTrialConfig:
    """Returns the settings of a trial, with a hash of all that its result depends on."""
    (seed, fold), is_first = seed_and_fold, seed_and_fold == seeds_and_folds(config)[0]
    recipe = FinetuneRecipe(precision=config.recipe.precision, seeds=(seed,))  # of a trial that trains nothing
    if values:
        rate, epochs = values["learning_rate"], values["num_epochs"]
        own = {"learning_rate": (rate,), "num_epochs": (epochs,), "seeds": (seed,)}
        recipe = replace(config.recipe, **own, frozen_learning_rate=(rate,), frozen_num_epochs=(epochs,))
    trial = DownstreamTrialConfig(
        folder=str(Path(config.output) / FOLDER / TRIALS / arm / folder_name(values) / f"seed-{seed}-fold-{fold}"),
        task=config.task,
        arm_name=arm,
        arm=inputs.arms[arm],
        learning_rate=recipe.learning_rate[0],
        num_epochs=recipe.num_epochs[0],
        seed=seed,
        fold=fold,
        settings_sha256="",
        documents_sha256=inputs.documents_sha256,
        model_sha256=inputs.models_sha256.get(arm),
        recipe=recipe,
        runtime=config.runtime.of_training(),
        num_explained=config.num_explained if is_first else 0,
    )
    tracking = Tracking(**asdict(config.tracking), name=f"{Path(config.output).name}: {name_of(trial)}")
    vectors = vectors_file(config, trial)
    trial = replace(trial, vectors=vectors, times_prediction=is_first or vectors is None, tracking=tracking)
    depends_on = [trial.documents_sha256, trial.model_sha256, _settings_of_result(trial)]
    return replace(trial, settings_sha256=sha256_of_json(depends_on))


def vectors_file(config: DownstreamConfig, trial: DownstreamTrialConfig) -> str | None:
    """Returns the file with the vectors of a frozen encoder, for one way to read documents; None if it is tuned."""
    arm = trial.arm
    if not arm.frozen or not trial.values:
        return None
    model = trial.model_sha256 or arm.model
    depends_on = [model, arm.revision, arm.reads, arm.length, trial.recipe.precision]
    return str(Path(config.output) / FOLDER / VECTORS / f"{sha256_of_json(depends_on)[:16]}.safetensors")


def combinations(config: DownstreamConfig, arm: str) -> list[dict[str, Any]]:
    """Returns every combination of rate and epochs to try for an arm; a single empty one if nothing is trained."""
    if not config.arms[arm].is_trained(config.task.kind):
        return [{}]
    recipe, is_frozen = config.recipe, config.arms[arm].frozen
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


def name_of(trial: DownstreamTrialConfig) -> str:
    """Returns the trial in words."""
    return trial_name(trial.arm_name, trial.values, trial.seed, trial.fold if trial.task.num_folds else None)


def difference(before: DownstreamTrialConfig, now: DownstreamTrialConfig) -> str:
    """Returns in words why the results of two trials with different hashes differ."""
    old, new = _settings_of_result(before), _settings_of_result(now)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return f"other settings of {', '.join(changed)}" if changed else "the documents or the model have changed"


def _settings_of_result(trial: DownstreamTrialConfig) -> dict[str, Any]:
    """Returns the settings on which a result depends; paths of text and models are none: their hashes are compared."""
    task, arm, data = trial.task, trial.arm, trial.task.data
    is_local = data.dataset is None or Path(data.dataset).is_dir()
    files = dict.fromkeys(("files", "dev_files", "test_files"), ()) | {"dataset": None if is_local else data.dataset}
    settings = {name: value for name, value in asdict(trial).items() if name in SETTINGS_OF_RESULT}
    settings["task"] = asdict(task) | {"data": asdict(data) | files}
    settings["arm"] = asdict(arm) | {"model": None if trial.model_sha256 else arm.model}
    if trial.task.kind == "similarity" and trial.values:  # a pair's negatives are the others of its micro-batch
        settings["rows_per_micro_batch"] = trial.runtime.rows_per_micro_batch
    return settings
