"""An experiment: arms, the values that are tried for each, seeds and folds; which trials run, and what they found.

Two arms, two learning rates to try and three seeds are 2 * 2 trials with the first seed, and 2 * 2 more with the better
rate of each arm. With folds, values are chosen with the first seed on the first fold.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from longmlm.artifacts.artifact import PAGE_FILE, Artifact, sha256_of_json
from longmlm.errors import TrainingError, counted
from longmlm.experiments.processes import Outcome, PlannedTrial, Trials
from longmlm.reports.pages import Head, Section, page
from longmlm.reports.tables import Table, text_table

TRIALS = "trials"  # in the folder of a command
MAX_NAME = 100

Values = dict[str, Any]  # of the settings that are searched, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an arm with one choice of values, one seed and, in cross-validation, one fold."""

    arm: str
    values: Values = field(default_factory=dict)
    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """The trial in words, such as "chunks, learning_rate 5e-05, seed 42, fold 0"."""
        fold = [] if self.fold is None else [f"fold {self.fold}"]
        return ", ".join([self.arm, *_labels_of(self.values), f"seed {self.seed}", *fold])

    def folder_in(self, output: str | Path) -> Path:
        """Returns the trial's folder in that of its command."""
        fold = "" if self.fold is None else f"-fold-{self.fold}"
        return Path(output, TRIALS, self.arm, folder_name(self.values), f"seed-{self.seed}{fold}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTrial(Trial):
    """A trial that did not finish, and the error in its log."""

    reason: str

    @property
    def description(self) -> str:
        """The trial and its error in one line."""
        return f"{self.name} failed: {self.reason}"


Found = TypeVar("Found")
Record = TypeVar("Record", bound=Artifact)


class Experiment(ABC, Generic[Found, Record]):
    """The arms of a command, in the order in which they run, with the values to try, and what is known so far.

    `repeats` lists the seed and fold of each trial; the first pair is also used to choose the values.
    """

    def __init__(self, arms: Mapping[str, Sequence[Values]], repeats: Sequence[tuple[int, int | None]]) -> None:
        self.arms, self.repeats = arms, repeats
        self.results: list[tuple[Trial, Found]] = []
        self.failed: list[FailedTrial] = []
        self.processes = Trials(self.num_trials)

    @property
    def num_trials(self) -> int:
        """How many trials there are in all."""
        return sum(len(combinations) + len(self.repeats) - 1 for combinations in self.arms.values())

    @abstractmethod
    def planned(self, trial: Trial) -> PlannedTrial:
        """Returns how a trial runs, and what its result depends on."""

    @abstractmethod
    def finish(self, trial: Trial) -> tuple[Found, str]:
        """Returns what a finished trial found, whole and in a few words; removes what is not kept of it."""

    @abstractmethod
    def rank(self, found: Found) -> Any:
        """Returns a key by which values are chosen for an arm: that of the best trial is the smallest."""

    @abstractmethod
    def write(self) -> Record:
        """Writes and returns the comparison of the results so far."""

    def ordered(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Returns trials in the order in which they run; raises the error of one that cannot, before any starts."""
        return trials

    def run_trial(self, trial: Trial) -> Outcome:
        """Runs a trial unless it has finished."""
        return self.processes.run(self.planned(trial))

    def run_all(self) -> Record:
        """Runs each arm with every combination of values, then with the best one for all other seeds and folds.

        Raises TrainingError if the very first trial fails before training, and if all trials fail.
        """
        (seed, fold), *others = self.repeats
        self._run(
            Trial(arm=arm, values=values, seed=seed, fold=fold)
            for arm, combinations in self.arms.items()
            for values in combinations
        )
        searched = [*self.results]
        for arm in self.arms:
            found = [pair for pair in searched if pair[0].arm == arm]
            if found:
                best, _ = min(found, key=lambda pair: self.rank(pair[1]))
                self._run(Trial(arm=arm, values=best.values, seed=seed, fold=fold) for seed, fold in others)
        if not self.results:
            raise TrainingError(f"every trial failed: {self.failed[0].description}")
        return self.write()

    def _run(self, trials: Iterable[Trial]) -> None:
        """Runs trials, and reports on all so far after each that was run."""
        for trial in self.ordered([*trials]):
            outcome = self.run_trial(trial)
            if outcome.error:
                known = {"arm": trial.arm, "values": trial.values, "seed": trial.seed, "fold": trial.fold}
                self.failed.append(FailedTrial(**known, reason=outcome.error))
            else:
                found, summary = self.finish(trial)
                self.results.append((trial, found))
                print(f"{outcome.label}: {'finished before, ' * outcome.was_finished}{summary}", flush=True)
            if self.results and not outcome.was_finished:
                self.write()


def experiment_page(head: Head, sections: Sequence[Section], failed: Sequence[FailedTrial], made_by: str) -> str:
    """Returns the page about a comparison, which lists failed trials, without tables that have no line."""
    lines = [[trial.name, trial.reason] for trial in failed]
    failures = Section("Failed trials", "The same command tries them again.", Table(["trial", "error"], lines))
    shown = [one for one in (*sections, failures) if not (isinstance(one.content, Table) and not one.content.lines)]
    return page(head, shown, made_by)


def print_report(table: Table, failed: Sequence[FailedTrial], folder: Path, finding: str) -> None:
    """Prints what a comparison found, and where its page is."""
    print(text_table(table), *(trial.description for trial in failed), sep="\n")
    print(f"page: {folder / PAGE_FILE}", finding, sep="\n", flush=True)


def title_of(subject: str, num_arms: int) -> str:
    """Returns the title of the page of a comparison."""
    return f"{subject}: comparison of {counted(num_arms, 'arm')}"


def values_in_words(values: Mapping[str, Any]) -> str:
    """Returns searched values in a cell of a table, a dash without any."""
    return ", ".join(_labels_of(values)) or "–"


def folder_name(values: Values) -> str:
    """Returns the values as the name of a folder; one that would be too long, or no plain name, ends in a hash."""
    label = ",".join(_labels_of(values)).replace(" ", "-") or "as-given"
    name = re.sub(r"[^\w.,+-]+", "-", label)[:MAX_NAME]
    return name if name == label else f"{name}-{sha256_of_json(values)[:8]}"


def _labels_of(values: Mapping[str, Any]) -> list[str]:
    """Returns a label per searched value: the last part of the setting's name, and the value."""
    return [f"{key.rpartition('.')[2]} {value}" for key, value in values.items()]
