"""The compare command: runs every trial of a comparison as a process, and reports what they measured.

OUTPUT/
    rows/                               shared by all trials that prepare text as the pipeline does
    compare/
        trials/ARM/VALUES/seed-42/      one folder per trial
        rows-HASH/                      rows of arms that prepare text in another way
        comparison.json, index.html     the results so far, with the charts, written again after every trial
        budget.json                     what was chosen after the first round, with a budget
        pipeline.toml                   the pipeline with the best arm and its values
"""

from pathlib import Path

import tomli_w

from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.errors import TrainingError, counted
from longmlm.folders import write_text
from longmlm.processes import exclusive_lock
from longmlm.reports.comparison import arms_table, finding
from longmlm.reports.tables import text_table
from longmlm.settings.compare import ComparedPipeline
from longmlm.settings.publishing import without_secrets
from longmlm.settings.tables import table_at
from longmlm.trials.budget import run_within_budget, with_candidates
from longmlm.trials.planned import FOLDER, best_pipeline, combinations, planned_trial
from longmlm.trials.running import Trials

PIPELINE = "pipeline.toml"


def compare(config: ComparedPipeline) -> None:
    """Runs the trials that are not finished, then writes and prints the comparison.

    Raises ConfigError, before any trial starts, for an arm that is no valid pipeline, and for a budget that is too
    short; TrainingError if the first trial fails before training, and if all trials but those of the control fail.
    """
    folder = Path(config.output) / FOLDER
    with exclusive_lock(folder):
        if config.budget and not config.compare.arms:
            config = with_candidates(config)
        trials = Trials(config)
        if config.budget:
            run_within_budget(config, trials)
        else:
            run_all(config, trials)
        comparison = trials.write()
        if not (arms := comparison.arms()):
            raise TrainingError(f"every trial failed: {comparison.failed[0].description}")
        best = best_pipeline(config, arms[0])
        num_steps = table_at(best, "pretrain", "recipe").get("num_steps", config.pretrain.recipe.num_steps)
        write_text(folder / PIPELINE, f"# {finding(comparison)}\n{tomli_w.dumps(without_secrets(best))}")
        print(text_table(arms_table(comparison)), *(trial.description for trial in comparison.failed), sep="\n")
        print(f"page: {folder / PAGE_FILE}", finding(comparison), sep="\n")
        print(f"to train the best arm anew, for {counted(num_steps, 'step')}: longmlm run {folder / PIPELINE}")


def run_all(config: ComparedPipeline, trials: Trials) -> None:
    """Runs each arm with every combination of the searched values, then the best of each with the other seeds.

    The control arm comes last.
    """
    first, *others = config.compare.seeds
    arms = sorted(config.compare.arms, key=lambda name: name == config.compare.control)
    planned = [planned_trial(config, arm, values, first) for arm in arms for values in combinations(config, arm)]
    num_trials = len(planned) + len(others) * len(arms)
    trials.run(planned, num_trials)
    comparison = trials.write()
    for arm in (arm for arm in arms if comparison.choices(arm)):
        values = comparison.arm(arm).values
        trials.run([planned_trial(config, arm, values, seed) for seed in others], num_trials)
