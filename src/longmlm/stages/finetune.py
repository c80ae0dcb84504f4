"""The process of one trial: fine-tunes an arm's model on the training documents, then predicts the test documents.

FOLDER/
    trial.toml                          the settings, written by the downstream command
    checkpoints/ metrics.jsonl ...      as in a run folder; checkpoints are removed at the end
    model/                              the model of the best epoch
    trial.json                          what it predicted, written last
"""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import DownstreamTrial, Explanation, Prediction, TrialCost
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.run import RunSummary
from longmlm.batches.examples import Example
from longmlm.config import read, to_toml, user_errors
from longmlm.data.folds import Fold, folds_of, units_of
from longmlm.data.labelled import LabelledCorpus, read_labelled
from longmlm.errors import DataError, counted
from longmlm.evaluation.occlusion import longest_documents
from longmlm.evaluation.packing import check_packed_examples
from longmlm.evaluation.task_explanations import explanations_of
from longmlm.evaluation.task_outputs import outputs_of
from longmlm.evaluation.task_predictions import predictions_of
from longmlm.folders import partial_of, seal
from longmlm.hubs.models import model_sha256
from longmlm.model.carried import Carried
from longmlm.model.classification import ClassificationObjective
from longmlm.model.loading import LoadedModel
from longmlm.model.saving import save_model
from longmlm.model.task_models import load_task_model, task_objective
from longmlm.model.tfidf import fit_tfidf
from longmlm.processes import exclusive_lock
from longmlm.runtime.launch import launch, peak_memory_bytes
from longmlm.runtime.precision import resolved_precision
from longmlm.runtime.signals import stop_on_signal
from longmlm.runtime.watchdog import watchdog
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.training.finetuning import Trial, check_longest_input, cost_of_trial, input_length, open_run, padding_token
from longmlm.training.loop import start, train, write_summary
from longmlm.training.micro_batch import evaluation_rows
from longmlm.training.run_folder import CHECKPOINTS, best_checkpoint, read_state
from longmlm.training.tracker import tracked
from longmlm.training.vectors import write_vectors
from longmlm.trials.downstream_planned import MODEL, documents_sha256
from longmlm.trials.planned import TRIAL


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
            result = tfidf_result(config, corpus, fold)
        else:
            result = model_result(open_trial(folder, config, corpus, fold))
        if result is not None:
            artifact.write(folder / DownstreamTrial.FILE, result)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def check_unchanged(config: DownstreamTrialConfig, corpus: LabelledCorpus) -> None:
    """Raises DataError if the documents or the files of a local model are not those that the command read."""
    if documents_sha256(corpus) != config.documents_sha256:
        raise DataError("the documents have changed since the command started: run longmlm downstream again")
    if config.model_sha256 and model_sha256(str(config.arm.model)) != config.model_sha256:
        raise DataError(f"{config.arm.model} has changed since the command started: run longmlm downstream again")


def tfidf_result(config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold) -> DownstreamTrial:
    """Returns what TF-IDF with logistic regression predicts for the test documents."""
    since = time.monotonic()
    model = fit_tfidf(corpus, fold, config.arm.length, config.seed)
    fitted = time.monotonic()
    predictions = model.predictions([corpus.documents[number] for number in fold.test])
    cost = TrialCost(
        train_tokens_per_second=None,
        train_seconds=fitted - since,
        documents_per_second=len(fold.test) / (time.monotonic() - fitted),
        peak_memory_bytes=peak_memory_bytes(),
        num_parameters=model.num_parameters,
    )
    explained = explained_predictions(config, corpus, fold, predictions)
    explanations = explanations_of("classification", corpus, explained, (), model.probabilities, model.characters_read)
    return trial_result(config, with_units(predictions, corpus), explanations, (model.dev_score,), cost)


def model_result(trial: Trial) -> DownstreamTrial | None:
    """Returns what the fine-tuned model predicts for the test documents; None after a stop signal."""
    if not trial.config.arm.is_trained(trial.config.task.kind):
        return evaluate_and_save(trial, None)
    summary = train_trial(trial)
    return evaluate_and_save(trial, summary) if summary else None


def open_trial(folder: Path, config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold) -> Trial:
    """Returns the trial on this launch."""
    precision, runtime = resolved_precision(config.recipe.precision), config.runtime
    accelerator = launch(precision, runtime.num_processes, runtime.num_threads, runtime.hang_seconds)
    return Trial(folder, config, to_toml(config), corpus, fold, accelerator)


def train_trial(trial: Trial) -> RunSummary | None:
    """Trains until the last epoch, or until the development score stops rising; None after a stop signal."""
    task, run, resumed_from = open_run(trial)
    tracker = trial.config.tracking.tracker if run.accelerator.is_main_process else None
    with watchdog(run.runtime.hang_seconds, run.accelerator.process_index), stop_on_signal() as stop:
        state = start(task, run, resumed_from)
        with tracked(run.folder, tracker, -1 if resumed_from is None else state.step):
            state = train(task, run, state, stop)
    if run.accelerator.is_main_process:
        write_vectors(trial.config.vectors, run.backend.objective)
    write_summary(run, state)
    is_over = state.step >= task.recipe.num_steps or task.evaluation.is_over(state)
    if not is_over or state.accuracy_here is None:  # a signal in the last step leaves that step without a score
        print(f"stopped by {stop.signal_name} after step {state.step}: the same command resumes from there")
        return None
    return artifact.read(RunSummary, run.folder / RunSummary.FILE)


def evaluate_and_save(trial: Trial, summary: RunSummary | None) -> DownstreamTrial:
    """Returns what the model of the best epoch, or one that is not trained, predicts for the test documents."""
    config, corpus, accelerator = trial.config, trial.corpus, trial.accelerator
    accelerator.free_memory()  # it holds the model of the last epoch
    checkpoint = best_checkpoint(trial.folder, first_step=1) if summary else None
    precision = read_state(checkpoint).precision if checkpoint else None
    loaded = load_task_model(config, corpus, str(checkpoint) if checkpoint else None)
    objective = task_objective(config, loaded, precision or resolved_precision(config.recipe.precision))
    objective.to(accelerator.device)
    examples, pad = trial.examples(loaded, corpus), padding_token(config, loaded.tokenizer)
    if summary is None:
        check_longest_input(config, objective, examples, pad)
    for note in check_packed_examples(objective, examples, pad):
        accelerator.print(note)
    rows = evaluation_rows(accelerator, config.runtime, cost_of_trial(config, loaded, examples, objective.precision))

    def examples_of_texts(texts: Sequence[str]) -> tuple[Example, ...]:
        documents = tuple(replace(corpus.documents[0], text=text) for text in texts)
        return trial.examples(loaded, replace(corpus, documents=documents))

    def probabilities(texts: Sequence[str]) -> np.ndarray:
        return np.stack(outputs_of(objective, examples_of_texts(texts), pad, rows, accelerator))

    test = [examples[number] for number in trial.fold.test]
    outputs_of(objective, test[:1], pad, rows, accelerator)  # the first pass is slower
    peak_bytes = peak_memory_bytes()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    since = time.monotonic()  # prediction includes tokenisation
    trial.examples(loaded, replace(corpus, documents=tuple(corpus.documents[number] for number in trial.fold.test)))
    outputs = outputs_of(objective, test, pad, rows, accelerator)
    seconds = time.monotonic() - since
    inference_bytes = peak_memory_bytes()
    peak_bytes = max(peak_bytes, inference_bytes, summary.peak_memory_bytes if summary else 0)  # without explanations
    predictions = predictions_of(config.task.kind, corpus, test, outputs)
    explained = explained_predictions(config, corpus, trial.fold, predictions)
    if explained:
        accelerator.print(f"explaining {counted(len(explained), 'test document')}")
    explanations = explanations_of(
        config.task.kind,
        corpus,
        explained,
        examples,
        probabilities,
        lambda text: trial.characters_read(loaded, text),
    )
    reads_cache = isinstance(objective, ClassificationObjective) and objective.caches_vectors
    cost = TrialCost(
        train_tokens_per_second=summary.train_tokens_per_second if summary and not reads_cache else None,
        train_seconds=summary.state.training_seconds if summary else 0.0,
        documents_per_second=len(test) / seconds,
        peak_memory_bytes=peak_bytes,
        num_parameters=loaded.model.num_parameters(),
        inference_memory_bytes=inference_bytes if torch.cuda.is_available() else None,
    )
    if checkpoint:
        save_best(loaded, trial.folder / MODEL)
    scores = dev_scores(trial.folder) if summary else ()
    length = input_length(config, loaded.model, loaded.tokenizer) - loaded.tokenizer.num_special_tokens_to_add()
    return trial_result(config, with_units(predictions, corpus), explanations, scores, cost, length)


def explained_predictions(
    config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold, predictions: Sequence[Prediction]
) -> dict[int, Prediction]:
    """Returns the predictions that are explained, by the document's number."""
    by_number = dict(zip(fold.test, predictions, strict=True))
    return {
        number: by_number[number] for number in longest_documents(corpus.documents, fold.test, config.num_explained)
    }


def with_units(predictions: Sequence[Prediction], corpus: LabelledCorpus) -> tuple[Prediction, ...]:
    """Returns the predictions with the unit of each document: the id of the first one that shares its text or group."""
    documents = corpus.documents
    units = {documents[number].id: documents[unit[0]].id for unit in units_of(documents) for number in unit}
    return tuple(replace(prediction, unit=units[prediction.document]) for prediction in predictions)


def trial_result(
    config: DownstreamTrialConfig,
    predictions: tuple[Prediction, ...],
    explanations: tuple[Explanation, ...],
    scores: tuple[float, ...],
    cost: TrialCost,
    length: int | None = None,
) -> DownstreamTrial:
    """Returns the content of trial.json."""
    return DownstreamTrial(
        arm=config.arm_name,
        values=config.values,
        seed=config.seed,
        fold=config.fold,
        settings_sha256=config.settings_sha256,
        dev_scores=scores,
        predictions=predictions,
        cost=cost,
        explanations=explanations,
        length=length,
    )


def dev_scores(folder: Path) -> tuple[float, ...]:
    """Returns the development score after each epoch, in percent."""
    evaluations = MetricsFile(folder).evaluations()
    return tuple(line.held_out.whole.accuracy or 0.0 for line in evaluations if line.step)


def save_best(loaded: LoadedModel, folder: Path) -> None:
    """Writes the model as transformers loads it, in place of an earlier one."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_model(loaded.model, loaded.tokenizer, Carried(), partial)
    trained = loaded.provenance.trained
    rowless = trained and replace(trained, rows_sha256=None)  # a trial has no rows; it was the hash of its settings
    artifact.write(partial / Provenance.FILE, replace(loaded.provenance, trained=rowless))
    seal(partial, folder)


if __name__ == "__main__":
    with user_errors():
        finetune(Path(sys.argv[1]))
