"""What a pipeline has reached, in the last lines that it prints."""

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.reports.evaluation import accuracy_table
from longmlm.reports.pages import PAGE_FILE
from longmlm.reports.tables import text_table
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_of


def summary(config: ResolvedPipeline) -> str:
    """Returns the accuracies reached, and the paths of the page and the release."""
    if config.evaluate and "evaluate" in config.stages:
        folder = result_of(config.evaluate)
        lines = [text_table(accuracy_table(read_evaluation(folder / Evaluation.FILE))), f"page: {folder / PAGE_FILE}"]
    else:
        measured = [
            (line.step, line.held_out.whole.accuracy) for line in MetricsFile(result_of(config.pretrain)).evaluations()
        ]
        lines = [f"held-out accuracy at step {step}: {found:.2f} %" for step, found in measured if found is not None]
        lines = lines[:: max(1, len(lines) - 1)]  # before and after training
    released = [f"released: {result_of(config.release)}"] if "release" in config.stages else []
    return "\n".join([*lines, *released])
