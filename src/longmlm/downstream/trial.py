"""The process of one trial: fits an arm's model on the training documents, then predicts the test documents.

FOLDER/
    trial.toml              the settings, written by the downstream command
    checkpoints/            of the best and the last epoch; removed at the end
    model/                  the model of the best epoch
    fine_tuned.json         what a release of the model needs
    trial.json              what it predicted, written last
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.config import read
from longmlm.downstream.artifacts import DownstreamTrial
from longmlm.downstream.documents import LabelledCorpus, read_labelled
from longmlm.downstream.folds import fold_of
from longmlm.downstream.page import write_fine_tuned
from longmlm.downstream.planned import TRAINING, TrialConfig
from longmlm.downstream.scores import predictions_of
from longmlm.errors import RESUMES, DataError, naming
from longmlm.experiments.processes import TRIAL
from longmlm.hubs.model_files import model_sha256
from longmlm.processes import LAUNCH_VARIABLES, exclusive_lock, user_errors
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.pretrain import Tracker
from longmlm.temporary import remove_inside


def run_trial(folder: Path) -> None:
    """Runs the trial in `folder` to its end and writes trial.json; resumes one that was broken off.

    Raises DataError if documents or model are no longer those that the command read.
    """
    if (folder / DownstreamTrial.FILE).is_file():
        return
    config = read(TrialConfig, [folder / TRIAL])
    corpus = read_labelled(config.task)
    _check_unchanged(config, corpus)
    fold = fold_of(corpus, config.task, config.seed, config.fold)
    with exclusive_lock(folder):
        if config.arm.model is None:
            from longmlm.downstream.tfidf import fit_tfidf

            model, score = fit_tfidf(corpus, fold, config.arm.length, config.seed)
            dev_scores = (score,)
        else:
            _set_environment(folder, config.tracking)
            from longmlm.downstream.arm_model import ArmModel
            from longmlm.downstream.tuning import fine_tune

            model = ArmModel.load(config, corpus)
            print(*model.loaded.notes, sep="\n", flush=True)
            dev_scores = fine_tune(folder, model, fold)
        trial = DownstreamTrial(
            arm=config.arm_name,
            values=config.values,
            seed=config.seed,
            fold=config.fold,
            dev_scores=dev_scores,
            predictions=tuple(predictions_of(corpus, fold.test, model.predict(fold.test))),
            num_untested=len(fold.untested),
        )
        resolved = replace(config, recipe=replace(config.recipe, precision=model.precision))
        write_fine_tuned(folder, resolved, corpus, trial, model.num_tokens)
        artifact.write(folder / DownstreamTrial.FILE, trial)
        remove_inside(folder, TRAINING)


def _check_unchanged(config: TrialConfig, corpus: LabelledCorpus) -> None:
    """Raises DataError if the documents or the files of a local model are not those that the command read."""
    if corpus.sha256 != config.documents_sha256:
        raise DataError("the documents have changed since the command started: run longmlm downstream again")
    if config.model_sha256 and model_sha256(str(config.arm.model)) != config.model_sha256:
        raise DataError(f"{config.arm.model} has changed since the command started: run longmlm downstream again")


def _set_environment(folder: Path, tracking: Tracker) -> None:
    """Hides other GPUs and ranks, and says what transformers' trackers log where; must run before torch is imported.

    Weights & Biases is offline without a login, and records neither code nor what is printed. A precision that was
    exported for Accelerate does not replace that of the settings.
    """
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"  # transformers reads it unless bf16 or fp16 is set
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    for name in LAUNCH_VARIABLES:
        os.environ.pop(name, None)
    os.environ |= {"TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"), "WANDB_DIR": str(folder)}
    os.environ |= {"WANDB_PROJECT": tracking.project, "WANDB_CONSOLE": "off"}
    os.environ |= dict.fromkeys(("WANDB_DISABLE_CODE", "WANDB_DISABLE_GIT", "WANDB_SILENT"), "true")
    if tracking.entity:
        os.environ["WANDB_ENTITY"] = tracking.entity
    if "WANDB_API_KEY" not in os.environ and not Path("~/.netrc").expanduser().is_file():
        os.environ.setdefault("WANDB_MODE", "offline")


if __name__ == "__main__":
    with user_errors(), exit_on_signal(RESUMES), naming(Path(sys.argv[1])):
        run_trial(Path(sys.argv[1]))
