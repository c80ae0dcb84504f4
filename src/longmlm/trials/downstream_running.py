"""Runs the trials of the downstream command as processes, and reports what they measured after every one.

OUTPUT/downstream/trials/ARM/VALUES/seed-42-fold-0/
    trial.toml, log.txt     its settings, and what its process printed
    trial.json              what it predicted, written last: a trial that has it is finished
    model/                  the fine-tuned model, which only the best trial of each arm keeps
.../seed-42-fold-0.earlier/
    the last finished trial with other settings, documents or model
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import present, to_toml
from longmlm.artifacts.downstream import MODEL, ComparedTask, DownstreamComparison, DownstreamTrial
from longmlm.config import read
from longmlm.errors import ArtifactError, ConfigError, TrainingError
from longmlm.folders import write_text
from longmlm.reports.downstream import write_downstream
from longmlm.reports.pages import made_with
from longmlm.runtime.trials import LOG, TRIAL, TRIALS, run_module
from longmlm.scoring.compared import chosen_values, compared
from longmlm.settings.downstream import DownstreamConfig, DownstreamTrialConfig
from longmlm.temporary import move_aside, remove_inside, remove_with
from longmlm.training.run_folder import CHECKPOINTS
from longmlm.trials.downstream_planned import (
    FOLDER,
    TrialInputs,
    combinations,
    difference,
    name_of,
    num_trials,
    planned_trial,
    seeds_and_folds,
)

FINETUNE = "longmlm.stages.finetune"
RECORDS = (DownstreamTrial.FILE, TRIAL)  # a folder with one of them is a trial's


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A trial that has run to its end: its settings, and what it measured."""

    planned: DownstreamTrialConfig
    trial: DownstreamTrial


@dataclass(slots=True)
class DownstreamTrials:
    """The trials of the downstream command so far: those that have finished, by arm, and why others failed, by name."""

    config: DownstreamConfig
    task: ComparedTask
    inputs: TrialInputs
    finished: dict[str, list[FinishedTrial]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run_all(self) -> DownstreamComparison:
        """Runs each arm with every combination of values, then with the best one on all seeds and folds.

        Raises TrainingError if the very first trial fails before training, and if all trials fail.
        """
        first, *others = seeds_and_folds(self.config)
        for arm in self.config.arms:
            for values in combinations(self.config, arm):
                self.run(arm, values, first)
        for arm, searched in self.finished.items():
            chosen = chosen_values([one.trial for one in searched])
            for seed_and_fold in others:
                self.run(arm, chosen, seed_and_fold)
        if not self.finished:
            name, reason = next(iter(self.failed.items()))
            raise TrainingError(f"every trial failed: {name}: {reason}")
        return self.write()

    def run(self, arm: str, values: dict[str, Any], seed_and_fold: tuple[int, int]) -> None:
        """Runs a trial unless it has finished, then reports on all trials; exits if a signal stops it."""
        planned = planned_trial(self.config, self.inputs, arm, values, seed_and_fold)
        number = sum(map(len, self.finished.values())) + len(self.failed) + 1
        label = f"[{number}/{num_trials(self.config)}] {name_of(planned)}"
        log = Path(planned.folder) / LOG
        was_finished = prepare_folder(planned, label, self.config.keep_weights)
        if not was_finished and (reason := attempt(planned, label)):
            if number == 1 and not (log.parent / CHECKPOINTS).exists():
                raise TrainingError(f"{name_of(planned)} failed: {reason}; its output is in {log}")
            self.failed[name_of(planned)] = reason
            print(f"{label} failed: {reason}; its output is in {log}", flush=True)
        else:
            trial = FinishedTrial(planned, artifact.read(DownstreamTrial, log.with_name(DownstreamTrial.FILE)))
            self.finished.setdefault(arm, []).append(trial)
            self.remove_weights(arm)
            score = f"{trial.trial.dev_score:.2f} % on the development documents"
            results = [*(["finished before"] if was_finished else []), *([score] if trial.trial.dev_scores else [])]
            print(f"{label}: {', '.join(results) or 'finished'}", flush=True)
        if self.finished and not was_finished:
            self.write()

    def remove_weights(self, arm: str) -> None:
        """Removes the models of an arm's trials but that of the best one so far, unless all are kept."""
        finished = self.finished[arm]
        for one in finished:
            remove_inside(Path(one.planned.folder), CHECKPOINTS)
            if one is not best(finished) and not self.config.keep_weights:
                remove_inside(Path(one.planned.folder), MODEL)

    def left_out(self) -> list[Path]:
        """Returns the folders of finished trials that an earlier command ran and that are not compared now."""
        compared_now = {Path(one.planned.folder) for finished in self.finished.values() for one in finished}
        results = Path(self.config.output, FOLDER, TRIALS).glob(f"*/*/*/{DownstreamTrial.FILE}")
        return sorted(file.parent for file in results if file.parent not in compared_now)

    def write(self) -> DownstreamComparison:
        """Writes downstream.json, the charts and the page; returns the comparison."""
        trials = [one.trial for finished in self.finished.values() for one in finished]
        comparison = compared(self.task, trials, self.failed)
        made_by = made_with("downstream", present(asdict(self.config)))
        write_downstream(comparison, Path(self.config.output) / FOLDER, made_by)
        return comparison


def best(finished: list[FinishedTrial]) -> FinishedTrial:
    """Returns the trial with the highest development score, the first of equals."""
    return max(finished, key=lambda one: one.trial.dev_score)


def prepare_folder(planned: DownstreamTrialConfig, label: str, needs_model: bool) -> bool:
    """Clears the folder of a trial that has to start anew; returns whether one with these settings has run to its end.

    It starts anew after other settings, and if its model is needed and was removed: a finished trial is moved aside,
    and another removed. A trial with these settings that was broken off stays, to be resumed.
    """
    folder, result = Path(planned.folder), Path(planned.folder, DownstreamTrial.FILE)
    if not folder.exists():
        return False
    has_ended = result.is_file()
    try:
        earlier = read(DownstreamTrialConfig, [folder / TRIAL])
    except ConfigError:
        earlier = None
    recorded = read_result(folder) if has_ended else earlier
    is_same = recorded is not None and recorded.settings_sha256 == planned.settings_sha256
    if is_same and not (has_ended and needs_model and planned.values and not (folder / MODEL).is_dir()):
        return has_ended
    if is_same:
        reason = "its model was removed"
    else:
        reason = difference(earlier, planned) if earlier else f"it has no {TRIAL} that this longmlm can read"
    if has_ended:
        print(f"{label} starts anew: {reason}; its earlier result is now in {move_aside(folder, RECORDS)}", flush=True)
    else:
        print(f"{label} starts anew: {reason}", flush=True)
        remove_with(folder, RECORDS)
    return False


def read_result(folder: Path) -> DownstreamTrial:
    """Returns what a finished trial measured; raises ArtifactError, with the remedy, if its file cannot be read."""
    try:
        return artifact.read(DownstreamTrial, folder / DownstreamTrial.FILE)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; to run the trial again, move {folder} away") from error


def attempt(planned: DownstreamTrialConfig, label: str) -> str:
    """Runs a trial to its end; returns the error if it fails, else an empty text; exits if a signal stops it."""
    folder = Path(planned.folder)
    print(f"{label} {'resumes' if (folder / CHECKPOINTS).is_dir() else 'starts'}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TRIAL, to_toml(planned))
    if reason := run_module(FINETUNE, [str(folder)], folder / LOG, label):
        return reason
    return "" if (folder / DownstreamTrial.FILE).is_file() else f"it wrote no {DownstreamTrial.FILE}"
