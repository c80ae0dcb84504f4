"""The compare command: runs every trial of a comparison as a process, and reports what they measured.

OUTPUT/
    rows/                               shared by all trials that prepare text as the pipeline does
    compare/
        trials/ARM/VALUES/seed-42/      one folder per trial
        rows-HASH/                      rows of arms that prepare text in another way
        comparison.json, index.html     the results so far, with the charts, written again after every trial
        pipeline.toml                   the pipeline with the best arm and its values
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w

from longmlm.artifacts.artifact import PAGE_FILE, present
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.compare.comparison import Comparison, FailedTrial, Trial, accuracy_of
from longmlm.compare.page import arms_table, finding, write_comparison
from longmlm.compare.planned import FOLDER, Variant, best_pipeline, combinations, variant
from longmlm.compare.settings import ComparedPipeline
from longmlm.errors import TrainingError, counted
from longmlm.folders import write_text
from longmlm.needs import check_inputs
from longmlm.processes import exclusive_lock
from longmlm.reports.pages import made_with
from longmlm.reports.tables import text_table
from longmlm.runtime.trials import Outcome, Trials, has_finished, read_record
from longmlm.settings.publishing import redacted_settings
from longmlm.settings.tables import table_at, without_empty_tables
from longmlm.staleness import check_text
from longmlm.temporary import remove_inside
from longmlm.training.run_folder import CHECKPOINTS

PIPELINE = "pipeline.toml"


def compare(config: ComparedPipeline) -> None:
    """Runs the trials that are not finished, then writes and prints the comparison.

    Raises ConfigError, before any trial starts, for an arm that is an invalid pipeline; TrainingError if the first
    trial fails before training, and if all trials but those of the control fail.
    """
    folder = Path(config.output) / FOLDER
    with exclusive_lock(folder):
        comparison = RunningComparison(config).run_all()
        if not (arms := comparison.arms()):
            raise TrainingError(f"every trial failed: {comparison.failed[0].description}")
        best = best_pipeline(config, arms[0])
        num_steps = table_at(best, "pretrain", "recipe").get("num_steps", config.pretrain.recipe.num_steps)
        write_text(folder / PIPELINE, f"# {finding(comparison)}\n{tomli_w.dumps(redacted_settings(best))}")
        print(text_table(arms_table(comparison)), *(trial.description for trial in comparison.failed), sep="\n")
        print(f"page: {folder / PAGE_FILE}", finding(comparison), sep="\n")
        print(f"to train the best arm anew, for {counted(num_steps, 'step')}: longmlm run {folder / PIPELINE}")


class RunningComparison:
    """A comparison so far: the trials that have finished, and those that failed."""

    def __init__(self, config: ComparedPipeline) -> None:
        self.config = config
        self.finished: list[Trial] = []
        self.failed: list[FailedTrial] = []

    def run_all(self) -> Comparison:
        """Runs each arm with every combination of the searched values, then the best of each with the other seeds.

        The control arm comes last.
        """
        config, (first, *others) = self.config, self.config.compare.seeds
        arms = sorted(config.compare.arms, key=lambda name: name == config.compare.control)
        searched = [variant(config, arm, values, first) for arm in arms for values in combinations(config, arm)]
        trials = Trials(num_planned=len(searched) + len(others) * len(arms))
        self.run(trials, searched)
        comparison = self.write()
        for arm in (arm for arm in arms if comparison.choices(arm)):
            values = comparison.arm(arm).values
            self.run(trials, [variant(config, arm, values, seed) for seed in others])
        return self.write()

    def run(self, trials: Trials, variants: Sequence[Variant]) -> None:
        """Runs the trials of these variants that have not finished.

        Before any trial starts, raises the error of the first setting of a trial that cannot be used. Raises
        TrainingError if the very first trial fails before training.
        """
        for one in variants:
            if not has_finished(one.trial()):
                check_inputs(one.pipeline)
        packed = {one.rows: one.pipeline.prepare for one in variants if one.rows.is_file()}
        for config in packed.values():
            check_text(config)
        if not all(one.rows in packed for one in variants):  # finished trials are judged by rows once they are packed
            variants = sorted(variants, key=lambda one: has_finished(one.trial()))
        for one in variants:
            outcome = run_trial(trials, one)
            if outcome.error:
                self.failed.append(FailedTrial(arm=one.arm, seed=one.seed, values=one.values, reason=outcome.error))
            else:
                if not self.config.compare.keep_weights:
                    remove_weights(one.folder)
                self.finished.append(trial := measured_trial(one))
                before, after = accuracy_of(trial.before), accuracy_of(trial.after)
                when = "finished before, " if outcome.was_finished else ""
                print(f"{outcome.label}: {when}{before:.2f} % before training, {after:.2f} % after", flush=True)
            self.write()

    def write(self) -> Comparison:
        """Writes comparison.json, the charts and the page, once there is an arm to show; returns the comparison."""
        config, compared = self.config, self.config.compare
        comparison = Comparison(
            model=config.model or "",
            row_length=config.length,
            baseline=compared.reference,
            control=compared.control,
            trials=tuple(self.finished),
            failed=tuple(self.failed),
        )
        if comparison.arms():
            settings = {**without_empty_tables(asdict(compared)), "arms": compared.arms}  # an arm may set nothing
            given = present({**without_empty_tables(config.tables), "compare": settings})
            write_comparison(comparison, Path(config.output) / FOLDER, made_with("compare", given))
        return comparison


def run_trial(trials: Trials, one: Variant) -> Outcome:
    """Runs a trial unless it has finished; missing rows are packed first, so that their hash is in its key."""
    trial = one.trial()
    if not one.rows.is_file() and not has_finished(trial):
        result, arguments = str(one.rows.absolute()), (*trial.arguments, "--until", "prepare")
        packing = trials.run(replace(trial, name=f"{trial.name}, packing rows", arguments=arguments, result=result))
        if packing.error:
            return packing
    return trials.run(one.trial())


def remove_weights(folder: Path) -> None:
    """Removes the checkpoints of a trial and the weights of its long model."""
    remove_inside(folder, f"run/{CHECKPOINTS}")
    for file in (folder / "long").glob("*.safetensors"):  # a long model elsewhere is refused
        file.unlink()


def measured_trial(one: Variant) -> Trial:
    """Returns what a finished trial measured."""
    evaluation, record = one.folder / "evaluation" / Evaluation.FILE, read_record(one.folder)
    extension = read_provenance(one.folder / "long").extension
    distilled = extension.distilled if extension else None
    distillation_tokens = distilled.tokens if distilled else 0
    return Trial(
        arm=one.arm,
        values=one.values,
        seed=one.seed,
        curve=tuple(
            replace(line, tokens=distillation_tokens + line.tokens)
            for line in MetricsFile(one.folder / "run").evaluations()
        ),
        rows_sha256=record.key["rows"] if record else "",
        base_positions=extension.base_positions if extension else None,
        distilled=distilled,
        held_out=one.pipeline.pretrain.recipe.held_out,
        measured=read_evaluation(evaluation).measured if evaluation.is_file() else {},
    )
