"""The downstream command: fine-tunes every arm on a labelled task, trial by trial, and reports how the arms compare.

OUTPUT/downstream/
    set_aside/records.jsonl                 records that are no documents, with the reason
    trials/ARM/VALUES/seed-42-fold-0/       one folder per trial
    downstream.json, index.html             the results so far, written again after every trial
"""

import itertools
from collections import Counter
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import PAGE_FILE, present
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.data.corpus import check_source, write_set_aside
from longmlm.data.files import SET_ASIDE, left_out
from longmlm.downstream.artifacts import ComparedTask, DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import compared, failures, finding
from longmlm.downstream.documents import LabelledCorpus, read_labelled, reasons_in_words
from longmlm.downstream.folds import fold_of
from longmlm.downstream.page import add_comparison, arms_table, downstream_page
from longmlm.downstream.planned import FOLDER, TRAINING, arm_trials, combinations, planned_trial
from longmlm.downstream.records import sources_of
from longmlm.downstream.settings import DownstreamConfig, LabelledTask
from longmlm.errors import TrainingError, counted
from longmlm.experiments.experiment import Experiment, Trial, print_report
from longmlm.experiments.processes import PlannedTrial, read_from_trial
from longmlm.hubs.datasets import commit_of
from longmlm.hubs.models import check_model
from longmlm.processes import exclusive_lock
from longmlm.reports.pages import made_with, public_path, write_page
from longmlm.temporary import check_writable, remove_inside
from longmlm.training.run_folder import CHECKPOINTS
from longmlm.training.tracker import check_installed

MAX_LABELS = 8  # that are named


def downstream(config: DownstreamConfig) -> None:
    """Runs the trials that are not finished, then writes and prints the comparison.

    Raises DataError, before any trial starts, for documents that cannot be used; TrainingError if the first trial fails
    before training, and, when the comparison is written, if any trial failed.
    """
    check_inputs(config)
    folder = Path(config.output) / FOLDER
    with exclusive_lock(folder):
        config = replace(config, task=_pinned(config.task))
        corpus = read_labelled(config.task)
        write_set_aside(folder / SET_ASIDE / "records.jsonl", corpus.set_aside)
        experiment = DownstreamExperiment(config, corpus)
        print(summary(experiment, corpus), flush=True)
        comparison = experiment.run_all()
        print_report(arms_table(comparison), comparison.failed, folder, finding(comparison))
        if comparison.failed:
            raise TrainingError(f"{failures(comparison)}: fix what failed, and run the same command again")


def check_inputs(config: DownstreamConfig) -> None:
    """Raises a UserError for the first setting that names something unusable."""
    if find_spec("sklearn") is None:
        raise TrainingError("longmlm downstream needs scikit-learn: pip install 'longmlm[downstream]'")
    check_writable(Path(config.output))
    check_installed(config.tracking.tracker)
    data = config.task.data
    source, _ = sources_of(data)[0]
    check_source(replace(source, files=(*data.files, *data.dev_files, *data.test_files)), config.output)
    for arm in config.arms.values():
        if arm.model is not None and not (Path(arm.model) / CHECKPOINTS).is_dir():
            check_model(arm.model, arm.revision)


def summary(experiment: "DownstreamExperiment", corpus: LabelledCorpus) -> str:
    """Returns in a few lines what the documents are, how they are split, and how many trials there are.

    Raises DataError if the first fold cannot be made.
    """
    config, task, data = experiment.config, experiment.config.task, experiment.config.task.data
    aside, set_aside = reasons_in_words(corpus.set_aside), Path(config.output) / FOLDER / SET_ASIDE
    fold = fold_of(corpus, task, *experiment.repeats[0])
    own = left_out([*data.files, *data.dev_files, *data.test_files])
    is_drawn = data.split_field and all(document.split != "test" for document in corpus.documents)
    sizes = f"{len(fold.train):,} training, {len(fold.dev):,} development, {counted(len(fold.test), 'test document')}"
    not_tested = f"{counted(len(fold.untested), 'document')} not tested: no training document has all of the labels"
    lines = [
        f"{counted(len(corpus.documents), 'document')}: {_labels_text(corpus)}",
        f"records set aside: {aside}; see {set_aside}" if aside else "no record set aside",
        own,
        f"{counted(task.num_folds, 'fold')}, the first with {sizes}" if task.num_folds else sizes,
        not_tested if fold.untested else "",
        "no document is given for testing: those are drawn" if is_drawn else "",
        f"{counted(len(config.arms), 'arm')}, {counted(experiment.num_trials, 'trial')}",
    ]
    return "\n".join(filter(None, lines))


def compared_task(config: DownstreamConfig, corpus: LabelledCorpus) -> ComparedTask:
    """Returns what is compared, as the results record it."""
    return ComparedTask(
        name=Path(config.output).name,
        target=corpus.target,
        labels=corpus.labels,
        num_documents=len(corpus.documents),
        num_set_aside=len(corpus.set_aside),
        num_folds=config.task.num_folds,
        arms={name: replace(arm, model=arm.model and public_path(arm.model)) for name, arm in config.arms.items()},
        baseline=config.reference,
    )


class DownstreamExperiment(Experiment[DownstreamTrial, DownstreamComparison]):
    """The trials of a task."""

    def __init__(self, config: DownstreamConfig, corpus: LabelledCorpus) -> None:
        folds = range(config.task.num_folds) if config.task.num_folds else [None]
        super().__init__(
            {name: combinations(config.recipe, arm) for name, arm in config.arms.items()},
            list(itertools.product(config.recipe.seeds, folds)),
        )
        self.config, self.task = config, compared_task(config, corpus)
        self.arm_trials = arm_trials(config, corpus)

    def planned(self, trial: Trial) -> PlannedTrial:
        """Returns how a trial runs, and what its result depends on."""
        return planned_trial(self.config, self.arm_trials[trial.arm], trial)

    def finish(self, trial: Trial) -> tuple[DownstreamTrial, str]:
        """Returns what a trial predicted; removes the models of its arm but that of the best trial so far."""
        result = read_from_trial(DownstreamTrial, self.folder_of(trial))
        remove_inside(self.folder_of(trial), TRAINING)
        of_arm = [pair for pair in (*self.results, (trial, result)) if pair[0].arm == trial.arm]
        best, _ = max(of_arm, key=lambda pair: pair[1].dev_score)
        for other, _ in of_arm:
            if other != best and not self.config.keep_weights:
                remove_inside(self.folder_of(other), MODEL)
        return result, f"{result.dev_score:.2f} % on the development documents"

    def folder_of(self, trial: Trial) -> Path:
        """Returns the folder of a trial."""
        return trial.folder_in(Path(self.config.output, FOLDER))

    def rank(self, found: DownstreamTrial) -> float:
        """Returns the best development score, the highest first."""
        return -found.dev_score

    def write(self) -> DownstreamComparison:
        """Writes downstream.json, the page and what the cards of all trials say of it; returns the comparison."""
        comparison = compared(self.task, [found for _, found in self.results], self.failed)
        folder = Path(self.config.output) / FOLDER
        made_by = made_with("downstream", present(asdict(self.config)))
        write_page(downstream_page(comparison, made_by), folder / PAGE_FILE)
        artifact.write(folder / DownstreamComparison.FILE, comparison)
        chosen = {arm.arm: arm.values for arm in comparison.arms}
        for trial, _ in self.results:
            if (self.folder_of(trial) / MODEL).is_dir():
                add_comparison(self.folder_of(trial), comparison if trial.values == chosen[trial.arm] else None)
        return comparison


def _pinned(task: LabelledTask) -> LabelledTask:
    """Returns the task with a dataset of the hub at its present commit; raises DataError if it cannot be reached."""
    data = task.data
    if data.dataset is None or Path(data.dataset).is_dir():
        return task
    return replace(task, data=replace(data, revision=commit_of(data.dataset, data.revision)))


def _labels_text(corpus: LabelledCorpus) -> str:
    """Returns the number of documents with each label, the most frequent ones first."""
    counts = Counter(label for document in corpus.documents for label in sorted(document.all_labels))
    named = [f"{label} {count:,}" for label, count in counts.most_common(MAX_LABELS)]
    more = [f"{len(counts) - MAX_LABELS} more"] if len(counts) > MAX_LABELS else []
    several = "; any number of labels per document, since some are lists" if corpus.target == "labels" else ""
    return ", ".join(named + more) + several
