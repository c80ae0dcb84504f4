"""What a pipeline has reached, in the last lines that it prints."""

from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.reports.evaluation import finding
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_of


def summary(config: ResolvedPipeline) -> str:
    """Returns what was found in a sentence, the paths of the page and the release, and what to do next."""
    evaluation = None
    if config.evaluate and "evaluate" in config.stages:
        folder = result_of(config.evaluate)
        evaluation = read_evaluation(folder / Evaluation.FILE)
        lines = [finding(evaluation), f"page: {folder / PAGE_FILE}"]
    else:
        measured = [
            (line.step, line.held_out.whole.accuracy) for line in MetricsFile(result_of(config.pretrain)).evaluations()
        ]
        lines = [f"held-out accuracy at step {step}: {found:.2f} %" for step, found in measured if found is not None]
        lines = lines[:: max(1, len(lines) - 1)]  # before and after training
    released = [f"released: {result_of(config.release)}"] if "release" in config.stages else []
    return "\n".join([*lines, *released, *_next_steps(config, evaluation)])


def _next_steps(config: ResolvedPipeline, evaluation: Evaluation | None) -> list[str]:
    """Returns what to do next: train longer, release, or publish."""
    if evaluation is not None and evaluation.is_recovered is False:
        run = result_of(config.pretrain)
        return [f"next: to train longer, set pretrain.start.checkpoint = {str(run)!r} and another output"]
    if "release" not in config.stages:
        return ["next: to make a release, run the same pipeline without until"]
    if config.release.publish is None:
        card = result_of(config.release) / "README.md"
        pipeline = f"{config.output}/pipeline.toml"
        return [f"next: read {card}, then publish: longmlm release {pipeline} --publish hf:OWNER/NAME"]
    return []
