"""The downstream command: fine-tunes every arm on a labelled task, trial by trial, and reports how the arms compare.

OUTPUT/downstream/
    set_aside/records.jsonl                 records that are no documents, with the reason
    trials/ARM/VALUES/seed-42-fold-0/       one folder per trial
    downstream.json, index.html             the results so far, with the charts, written again after every trial
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.downstream import ComparedTask
from longmlm.data.corpus import write_set_aside
from longmlm.data.files import left_out
from longmlm.data.folds import Fold, folds_of
from longmlm.data.labelled import LabelledCorpus, pinned, read_labelled, reasons_in_words
from longmlm.errors import TrainingError, counted
from longmlm.processes import exclusive_lock
from longmlm.reports.downstream import arms_table
from longmlm.reports.downstream_finding import failures, finding
from longmlm.reports.pages import public_path
from longmlm.reports.tables import text_table
from longmlm.settings.downstream import DownstreamConfig
from longmlm.trials.downstream_planned import FOLDER, inputs_of, num_trials
from longmlm.trials.downstream_running import DownstreamTrials

SET_ASIDE = "set_aside"
MAX_LABELS = 8  # that are named


def downstream(config: DownstreamConfig) -> None:
    """Runs the trials that are not finished, then writes and prints the comparison.

    Raises DataError, before any trial starts, for documents that cannot be used; TrainingError if the first trial fails
    before training, and, when the comparison is written, if any trial failed.
    """
    folder = Path(config.output) / FOLDER
    with exclusive_lock(folder):
        config = replace(config, task=pinned(config.task))
        corpus = read_labelled(config.task)
        write_set_aside(folder / SET_ASIDE / "records.jsonl", corpus.set_aside)
        print(summary(config, corpus), flush=True)
        trials = DownstreamTrials(config, compared_task(config, corpus), inputs_of(config, corpus))
        comparison = trials.run_all()
        failed = [f"{name} failed: {reason}" for name, reason in comparison.failed.items()]
        print(text_table(arms_table(comparison)), *failed, sep="\n")
        if left_out := trials.left_out():
            number = counted(len(left_out), "trial")
            print(f"{number} of earlier commands not compared, such as {left_out[0]}")
        print(f"page: {folder / PAGE_FILE}", finding(comparison), sep="\n", flush=True)
        if failed:
            raise TrainingError(f"{failures(comparison)}: fix what failed, and run the same command again")


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
        num_untested=len({number for fold in all_folds(config, corpus) for number in fold.untested}),
        arms={name: replace(arm, model=arm.model and public_path(arm.model)) for name, arm in config.arms.items()},
        baseline=config.reference,
    )


def summary(config: DownstreamConfig, corpus: LabelledCorpus) -> str:
    """Returns in a few lines what the documents are, how they are split, and how many trials there are.

    Raises DataError if the folds of a seed cannot be made.
    """
    aside, set_aside = reasons_in_words(corpus.set_aside), Path(config.output) / FOLDER / SET_ASIDE
    folds = all_folds(config, corpus)[: config.task.num_folds or 1]
    data = config.task.data
    own = left_out([*data.files, *data.dev_files, *data.test_files])
    first, untested, noun = folds[0], sum(len(fold.untested) for fold in folds), config.task.noun
    shared = num_sharing_a_text(corpus, first) if config.task.kind == "similarity" else 0
    sharing = f"{counted(shared, 'test pair')} with a text of a training pair: group_field can separate them"
    is_drawn = data.split_field and all(document.split != "test" for document in corpus.documents)
    sizes = f"{len(first.train):,} training, {len(first.dev):,} development, {counted(len(first.test), f'test {noun}')}"
    lines = [
        f"{counted(len(corpus.documents), noun)}: {labels_text(corpus)}",
        f"records set aside: {aside}; see {set_aside}" if aside else "no record set aside",
        *([own] if own else []),
        f"{counted(len(folds), 'fold')}, the first with {sizes}" if config.task.num_folds else sizes,
        *([f"{counted(untested, noun)} not tested: no training {noun} has all of the labels"] if untested else []),
        *([sharing] if shared else []),
        *([f"no {noun} is given for testing: those are drawn"] if is_drawn else []),
        f"{counted(len(config.arms), 'arm')}, {counted(num_trials(config), 'trial')}",
    ]
    return "\n".join(lines)


def all_folds(config: DownstreamConfig, corpus: LabelledCorpus) -> list[Fold]:
    """Returns the folds of each seed, those of the first one first; raises DataError if they cannot be made."""
    return [fold for seed in config.recipe.seeds for fold in folds_of(corpus, config.task, seed)]


def num_sharing_a_text(corpus: LabelledCorpus, fold: Fold) -> int:
    """Returns the number of test pairs of which one text is also in a training pair."""
    texts = [{document.text, document.second_text} for document in corpus.documents]
    trained = set[str | None]().union(*(texts[number] for number in fold.train))
    return sum(not texts[number].isdisjoint(trained) for number in fold.test)


def labels_text(corpus: LabelledCorpus) -> str:
    """Returns the number of documents with each label, the most frequent ones first."""
    counts = Counter(label for document in corpus.documents for label in sorted(document.all_labels))
    named = [f"{label} {count:,}" for label, count in counts.most_common(MAX_LABELS)]
    more = [f"{len(counts) - MAX_LABELS} more"] if len(counts) > MAX_LABELS else []
    several = "; any number of labels per document, since some are lists" if corpus.is_multilabel else ""
    return (", ".join(named + more) or "each with a similarity score") + several
