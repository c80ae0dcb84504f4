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

from longmlm.artifacts.artifact import present
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.compare.comparison import Arm, Comparison, MeasuredTrial, accuracy_of, rank
from longmlm.compare.page import arms_table, finding, write_comparison
from longmlm.compare.planned import FOLDER, Variant, best_pipeline, combinations, variant
from longmlm.compare.settings import ComparedPipeline
from longmlm.errors import TrainingError, counted
from longmlm.experiments.experiment import Experiment, Trial, print_report
from longmlm.experiments.processes import Outcome, PlannedTrial, has_finished, read_record
from longmlm.folders import write_text
from longmlm.needs import check_inputs
from longmlm.processes import exclusive_lock
from longmlm.reports.pages import made_with
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
        print_report(arms_table(comparison), comparison.failed, folder, finding(comparison))
        print(f"to train the best arm anew, for {counted(num_steps, 'step')}: longmlm run {folder / PIPELINE}")


class RunningComparison(Experiment[MeasuredTrial, Comparison]):
    """The trials of a comparison, those of the control arm last."""

    def __init__(self, config: ComparedPipeline) -> None:
        arms = sorted(config.compare.arms, key=lambda name: name == config.compare.control)
        super().__init__(
            {arm: combinations(config, arm) for arm in arms}, [(seed, None) for seed in config.compare.seeds]
        )
        self.config = config
        self.variants: dict[str, Variant] = {}

    def ordered(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Returns finished trials last if rows are missing: they are judged by rows once these are packed."""
        variants = {trial.name: variant(self.config, trial) for trial in trials}
        self.variants |= variants
        for one in variants.values():
            if not has_finished(one.planned()):
                check_inputs(one.pipeline)
        packed = {one.rows: one.pipeline.prepare for one in variants.values() if one.rows.is_file()}
        for config in packed.values():
            check_text(config)
        if all(one.rows in packed for one in variants.values()):
            return trials
        return sorted(trials, key=lambda trial: has_finished(variants[trial.name].planned()))

    def planned(self, trial: Trial) -> PlannedTrial:
        """Returns how a trial runs; its key depends on whether its rows are packed."""
        return self.variants[trial.name].planned()

    def run_trial(self, trial: Trial) -> Outcome:
        """Runs a trial unless it has finished; missing rows are packed first, so that their hash is in its key."""
        planned, rows = self.planned(trial), self.variants[trial.name].rows
        if not rows.is_file() and not has_finished(planned):
            name, arguments = f"{planned.name}, packing rows", (*planned.arguments, "--until", "prepare")
            packing = replace(planned, name=name, arguments=arguments, result=str(rows.absolute()))
            if (outcome := self.processes.run(packing)).error:
                return outcome
        return super().run_trial(trial)

    def finish(self, trial: Trial) -> tuple[MeasuredTrial, str]:
        """Returns what a trial measured; removes its weights unless they are kept."""
        one = self.variants[trial.name]
        if not self.config.compare.keep_weights:
            remove_weights(one.folder)
        measured = measured_trial(one)
        before, after = accuracy_of(measured.before), accuracy_of(measured.after)
        return measured, f"{before:.2f} % before training, {after:.2f} % after"

    def rank(self, found: MeasuredTrial) -> tuple[bool, float, float]:
        """Returns the rank of an arm with this trial alone."""
        return rank(Arm(name=found.arm, values=found.values, trials=(found,)))

    def write(self) -> Comparison:
        """Writes comparison.json, the charts and the page, once there is an arm to show; returns the comparison."""
        config = self.config
        comparison = Comparison(
            model=config.model or "",
            row_length=config.length,
            baseline=config.compare.reference,
            control=config.compare.control,
            trials=tuple(found for _, found in self.results),
            failed=tuple(self.failed),
        )
        if comparison.arms():
            settings = {**without_empty_tables(asdict(config.compare)), "arms": config.compare.arms}  # one may be empty
            given = present({**without_empty_tables(config.tables), "compare": settings})
            write_comparison(comparison, Path(config.output) / FOLDER, made_with("compare", given))
        return comparison


def remove_weights(folder: Path) -> None:
    """Removes the checkpoints of a trial and the weights of its long model."""
    remove_inside(folder, f"run/{CHECKPOINTS}")
    for file in (folder / "long").glob("*.safetensors"):  # a long model elsewhere is refused
        file.unlink()


def measured_trial(one: Variant) -> MeasuredTrial:
    """Returns what a finished trial measured."""
    evaluation, record = one.folder / "evaluation" / Evaluation.FILE, read_record(one.folder)
    extension = read_provenance(one.folder / "long").extension
    distilled = extension.distilled if extension else None
    distillation_tokens = distilled.tokens if distilled else 0
    return MeasuredTrial(
        arm=one.trial.arm,
        values=one.trial.values,
        seed=one.trial.seed,
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
