"""The process of one trial: fine-tunes an arm's model on the training documents, then predicts the test documents.

FOLDER/
    trial.toml                          the settings, written by the downstream command
    checkpoints/ metrics.jsonl ...      as in a run folder; checkpoints are removed at the end
    model/                              the model of the best epoch
    trial.json                          what it predicted, written last
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.downstream import MODEL, DownstreamTrial
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.run import RunSummary
from longmlm.config import read
from longmlm.data.folds import Fold, folds_of
from longmlm.data.labelled import LabelledCorpus, read_labelled
from longmlm.errors import DataError, naming
from longmlm.evaluation.packing import check_packed_examples
from longmlm.evaluation.predictor import FitResult, trial_result
from longmlm.folders import rewritten_folder
from longmlm.hubs.models import model_sha256
from longmlm.model.carried import Carried, save_model
from longmlm.model.classification import ClassificationObjective
from longmlm.model.loading import LoadedModel
from longmlm.model.task_models import load_task_model, task_objective
from longmlm.model.tfidf import fit_tfidf
from longmlm.processes import exclusive_lock, user_errors
from longmlm.runtime.launch import launch, resolved_precision
from longmlm.runtime.signals import exit_on_signal, stop_on_signal, stopped_by
from longmlm.runtime.trials import TRIAL
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.temporary import remove_inside
from longmlm.training.encoder_predictor import EncoderPredictor
from longmlm.training.finetuning import (
    FinetuningTrial,
    check_longest_input,
    cost_of_trial,
    input_length,
    open_run,
    padding_token,
)
from longmlm.training.loop import start, train, write_summary
from longmlm.training.micro_batch import fitting_evaluation_rows
from longmlm.training.run_folder import CHECKPOINTS, best_checkpoint, read_state
from longmlm.training.tracker import tracked
from longmlm.training.vectors import read_vectors, write_vectors
from longmlm.trials.downstream_planned import documents_sha256


def finetune(folder: Path) -> None:
    """Runs the trial in `folder` to its end and writes trial.json; resumes one that was broken off.

    After a stop signal, the trial is saved and there is no trial.json. Raises DataError if documents or model are no
    longer those that the command read.
    """
    config = read(DownstreamTrialConfig, [folder / TRIAL])
    corpus = read_labelled(config.task)
    check_unchanged(config, corpus)
    fold = folds_of(corpus, config.task, config.seed)[config.fold]
    with exclusive_lock(folder):
        if config.arm.model is None:
            fitted = fit_tfidf_arm(config, corpus, fold)
        else:
            fitted = fit_encoder(launch_trial(folder, config, corpus, fold))
        if fitted is not None:
            result = trial_result(fitted, config, corpus, fold)
            if isinstance(fitted.predictor, EncoderPredictor):
                write_vectors(config.vectors, fitted.predictor.objective)
            artifact.write(folder / DownstreamTrial.FILE, result)
            remove_inside(folder, CHECKPOINTS)


def check_unchanged(config: DownstreamTrialConfig, corpus: LabelledCorpus) -> None:
    """Raises DataError if the documents or the files of a local model are not those that the command read."""
    if documents_sha256(corpus) != config.documents_sha256:
        raise DataError("the documents have changed since the command started: run longmlm downstream again")
    if config.model_sha256 and model_sha256(str(config.arm.model)) != config.model_sha256:
        raise DataError(f"{config.arm.model} has changed since the command started: run longmlm downstream again")


def fit_tfidf_arm(config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold) -> FitResult:
    """Returns TF-IDF with logistic regression, fitted on the training documents."""
    since = time.monotonic()
    model = fit_tfidf(corpus, fold, config.arm.length, config.seed)
    return FitResult(predictor=model, dev_scores=(model.dev_score,), seconds=time.monotonic() - since)


def fit_encoder(trial: FinetuningTrial) -> FitResult | None:
    """Returns the encoder of the best epoch, fine-tuned if the arm is trained; None after a stop signal."""
    if not trial.config.arm.is_trained(trial.config.task.kind):
        return best_encoder(trial, None)
    summary = train_trial(trial)
    return best_encoder(trial, summary) if summary else None


def launch_trial(folder: Path, config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold) -> FinetuningTrial:
    """Returns the trial on this launch."""
    precision, runtime = resolved_precision(config.recipe.precision), config.runtime
    accelerator = launch(precision, runtime.num_processes, runtime.num_threads, runtime.hang_seconds)
    return FinetuningTrial(folder, config, to_toml(config), corpus, fold, accelerator)


def train_trial(trial: FinetuningTrial) -> RunSummary | None:
    """Trains until the last epoch, or until the development score stops rising; None after a stop signal."""
    task, run, resumed_from = open_run(trial)
    tracker = trial.config.tracking.tracker if run.accelerator.is_main_process else None
    with watchdog(run.runtime.hang_seconds, run.accelerator.process_index), stop_on_signal() as stop:
        state = start(task, run, resumed_from)
        with tracked(run.folder, tracker, state if resumed_from else None):
            state = train(task, run, state, stop)
    if run.accelerator.is_main_process:
        write_vectors(trial.config.vectors, run.backend.objective)
    write_summary(run, state)
    is_over = state.step >= task.recipe.num_steps or task.evaluation.is_over(state)
    if not is_over or state.accuracy_here is None:  # a signal in the last step leaves that step without a score
        print(f"{stopped_by(stop.signal_name)} after step {state.step}: the same command resumes from there")
        return None
    return artifact.read(RunSummary, run.folder / RunSummary.FILE)


def best_encoder(trial: FinetuningTrial, summary: RunSummary | None) -> FitResult:
    """Returns the arm's model, ready to predict: that of the best epoch, which is also saved, or its own as it is.

    An arm that trains nothing has no summary.
    """
    config, accelerator = trial.config, trial.accelerator
    accelerator.free_memory()  # it holds the model of the last epoch
    checkpoint = best_checkpoint(trial.folder, prefers_latest=True) if summary else None
    precision = read_state(checkpoint).precision if checkpoint else None
    loaded = load_task_model(config, trial.corpus, str(checkpoint) if checkpoint else None)
    if checkpoint:
        save_best(loaded, trial.folder / MODEL)
    objective = task_objective(config, loaded, precision or resolved_precision(config.recipe.precision))
    objective.to(accelerator.device)
    if not config.times_prediction:
        read_vectors(config.vectors, objective)
    examples, pad = trial.examples(loaded, trial.corpus), padding_token(config, loaded.tokenizer)
    if summary is None:
        check_longest_input(config, objective, examples, pad)
    for note in check_packed_examples(objective, examples, pad):
        accelerator.print(note)
    rows = fitting_evaluation_rows(
        accelerator, config.runtime, cost_of_trial(config, loaded, examples, objective.precision)
    )
    predictor = EncoderPredictor(trial, loaded, objective, pad, rows)
    length = input_length(config, loaded.model, loaded.tokenizer) - loaded.tokenizer.num_special_tokens_to_add()
    if summary is None:
        return FitResult(predictor=predictor, length=length)
    reads_cache = isinstance(objective, ClassificationObjective) and objective.caches_vectors
    return FitResult(
        predictor=predictor,
        dev_scores=dev_scores(trial.folder),
        seconds=summary.state.training_seconds,
        tokens_per_second=None if reads_cache else summary.train_tokens_per_second,
        peak_memory_bytes=summary.peak_memory_bytes,
        length=length,
        is_timed=config.times_prediction or not reads_cache,
    )


def dev_scores(folder: Path) -> tuple[float, ...]:
    """Returns the development score after each epoch, in percent."""
    evaluations = MetricsFile(folder).evaluations()
    return tuple(line.held_out.whole.accuracy or 0.0 for line in evaluations if line.step)


def save_best(loaded: LoadedModel, folder: Path) -> None:
    """Writes the model as transformers loads it, in place of an earlier one."""
    trained = loaded.provenance.trained
    rowless = trained and replace(trained, rows_sha256=None)  # a trial has no rows; it was the hash of its settings
    with rewritten_folder(folder) as partial:
        save_model(loaded.model, loaded.tokenizer, Carried(), partial)
        artifact.write(partial / Provenance.FILE, replace(loaded.provenance, trained=rowless))


if __name__ == "__main__":
    with user_errors(), exit_on_signal(), naming(Path(sys.argv[1])):
        finetune(Path(sys.argv[1]))
