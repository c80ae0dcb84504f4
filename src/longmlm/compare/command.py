"""The compare command: runs every trial of a comparison as a process, and reports what they measured.

OUTPUT/
    rows/                               shared by all trials that prepare text as the pipeline does
    compare/
        trials/ARM/VALUES/seed-42/      one folder per trial
        rows-HASH/                      rows of arms that prepare text in another way
        comparison.json, index.html     the results so far, with the charts, written again after every trial
        pipeline.toml                   the pipeline with the best arm and its values
"""

from pathlib import Path

import tomli_w

from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.compare.page import arms_table, finding
from longmlm.compare.planned import FOLDER, best_pipeline
from longmlm.compare.running import RunningComparison
from longmlm.compare.settings import ComparedPipeline
from longmlm.errors import TrainingError, counted
from longmlm.folders import write_text
from longmlm.processes import exclusive_lock
from longmlm.reports.tables import text_table
from longmlm.settings.publishing import redacted_settings
from longmlm.settings.tables import table_at

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
