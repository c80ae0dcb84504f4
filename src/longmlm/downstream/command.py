"""The downstream command: fine-tunes every arm on a labelled task, trial by trial, and reports how the arms compare.

OUTPUT/downstream/
    set_aside/records.jsonl                 records that are no documents, with the reason
    trials/ARM/VALUES/seed-42-fold-0/       one folder per trial
    downstream.json, index.html             the results so far, written again after every trial
"""

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longmlm.artifacts.artifact import PAGE_FILE, present
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.data.corpus import check_source, write_set_aside
from longmlm.data.files import SET_ASIDE, left_out
from longmlm.downstream.artifacts import ComparedTask, DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import chosen_values, compared, failures, finding
from longmlm.downstream.documents import LabelledCorpus, read_labelled, reasons_in_words
from longmlm.downstream.folds import fold_of
from longmlm.downstream.page import add_comparison, arms_table, write_downstream
from longmlm.downstream.planned import FOLDER, TRAINING, Plan
from longmlm.downstream.records import sources_of
from longmlm.downstream.settings import DownstreamConfig, LabelledTask
from longmlm.errors import TrainingError, counted
from longmlm.hubs.datasets import commit_of
from longmlm.hubs.models import check_model
from longmlm.processes import exclusive_lock
from longmlm.reports.pages import made_with, public_path
from longmlm.reports.tables import text_table
from longmlm.runtime.trials import Trials, read_from_trial
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
        plan = Plan.of(config, corpus)
        print(summary(plan, corpus), flush=True)
        comparison = DownstreamTrials(plan, compared_task(config, corpus)).run_all()
        failed = [f"{name} failed: {reason}" for name, reason in comparison.failed.items()]
        print(text_table(arms_table(comparison)), *failed, sep="\n")
        print(f"page: {folder / PAGE_FILE}", finding(comparison), sep="\n", flush=True)
        if failed:
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


def summary(plan: Plan, corpus: LabelledCorpus) -> str:
    """Returns in a few lines what the documents are, how they are split, and how many trials there are.

    Raises DataError if the first fold cannot be made.
    """
    config, task, data = plan.config, plan.config.task, plan.config.task.data
    aside, set_aside = reasons_in_words(corpus.set_aside), Path(config.output) / FOLDER / SET_ASIDE
    fold = fold_of(corpus, task, config.recipe.seeds[0], 0)
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
        f"{counted(len(config.arms), 'arm')}, {counted(plan.num_trials, 'trial')}",
    ]
    return "\n".join(filter(None, lines))


def compared_task(config: DownstreamConfig, corpus: LabelledCorpus) -> ComparedTask:
    """Returns what is compared, as the results record it."""
    return ComparedTask(
        name=Path(config.output).name,
        kind=config.task.kind,
        labels=corpus.labels,
        is_multilabel=corpus.is_multilabel,
        num_documents=len(corpus.documents),
        num_set_aside=len(corpus.set_aside),
        num_folds=config.task.num_folds,
        arms={name: replace(arm, model=arm.model and public_path(arm.model)) for name, arm in config.arms.items()},
        baseline=config.reference,
    )


@dataclass(slots=True)
class DownstreamTrials:
    """The trials so far: those that have finished, by arm, with their folders, and why others failed, by name."""

    plan: Plan
    task: ComparedTask
    finished: dict[str, list[tuple[DownstreamTrial, Path]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run_all(self) -> DownstreamComparison:
        """Runs each arm with every combination of values, then with the best one on all seeds and folds.

        Raises TrainingError if the very first trial fails before training, and if all trials fail.
        """
        trials = Trials(self.plan.num_trials)
        first, *others = self.plan.seeds_and_folds
        for arm in self.plan.arms:
            for values in self.plan.combinations(arm):
                self.run(trials, arm, values, first)
        for arm, searched in self.finished.items():
            chosen = chosen_values([trial for trial, _ in searched])
            for seed_and_fold in others:
                self.run(trials, arm, chosen, seed_and_fold)
        if not self.finished:
            name, reason = next(iter(self.failed.items()))
            raise TrainingError(f"every trial failed: {name}: {reason}")
        return self.write()

    def run(self, trials: Trials, arm: str, values: dict[str, Any], seed_and_fold: tuple[int, int]) -> None:
        """Runs a trial unless it has finished, then reports on all trials; exits if a signal stops it."""
        planned = self.plan.trial(arm, values, *seed_and_fold)
        outcome = trials.run(planned)
        if outcome.error:
            self.failed[planned.name] = outcome.error
        else:
            trial = read_from_trial(DownstreamTrial, planned.folder)
            self.finished.setdefault(arm, []).append((trial, planned.folder))
            self.remove_weights(arm)
            before = "finished before, " if outcome.was_finished else ""
            print(f"{outcome.label}: {before}{trial.dev_score:.2f} % on the development documents", flush=True)
        if self.finished and not outcome.was_finished:
            self.write()

    def remove_weights(self, arm: str) -> None:
        """Removes the models of an arm's trials but that of the best one so far, unless all are kept."""
        best, _ = max(self.finished[arm], key=lambda pair: pair[0].dev_score)
        for trial, folder in self.finished[arm]:
            remove_inside(folder, TRAINING)
            if trial is not best and not self.plan.config.keep_weights:
                remove_inside(folder, MODEL)

    def write(self) -> DownstreamComparison:
        """Writes downstream.json, the page and what the cards of all trials say of it; returns the comparison."""
        pairs = [pair for finished in self.finished.values() for pair in finished]
        comparison = compared(self.task, [trial for trial, _ in pairs], self.failed)
        made_by = made_with("downstream", present(asdict(self.plan.config)))
        write_downstream(comparison, Path(self.plan.config.output) / FOLDER, made_by)
        chosen = {arm.arm: arm.values for arm in comparison.arms}
        for trial, folder in pairs:
            if (folder / MODEL).is_dir():
                add_comparison(folder, comparison if trial.values == chosen[trial.arm] else None)
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
    several = "; any number of labels per document, since some are lists" if corpus.is_multilabel else ""
    return ", ".join(named + more) + several
