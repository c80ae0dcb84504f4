"""Writes summary.json of a finished demo and prints its table: summarize_demo.py FOLDER.

Exits with code 1 when the long model did not recover.
"""

import sys
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.run import RunSummary
from longmlm.folders import write_json
from longmlm.reports.evaluation import accuracy_table
from longmlm.reports.pages import PAGE_FILE
from longmlm.reports.tables import text_table

MIN_SELECTED = 20_000
MIN_GAIN = 2.0


def summarize(demo: Path, evaluation: Evaluation) -> dict[str, Any]:  # read by people and by the demo's test only
    """Returns the figures of the demo, accuracies in percent."""
    run = artifact.read(RunSummary, demo / "run" / RunSummary.FILE)
    before, after = evaluation.measured["long_before"], evaluation.measured["long_after"]
    return {
        **{view: measured.whole.accuracy for view, measured in evaluation.measured.items()},
        "blocks_before": [block.accuracy for block in before.blocks],
        "blocks_after": [block.accuracy for block in after.blocks],
        "standard_error": after.whole.standard_error,
        "num_selected": after.whole.num_selected,
        "num_steps": run.state.step,
        "recovered_at_step": run.state.recovered_at_step,
        "train_tokens_per_second": run.train_tokens_per_second,
        "exported_to": str(demo / "roberta-mini-384"),
    }


def shortcomings(evaluation: Evaluation) -> list[str]:
    """Returns the reasons why the demo does not show that the method works."""
    accuracy = {view: measured.whole.accuracy or 0.0 for view, measured in evaluation.measured.items()}
    after, problems = evaluation.measured["long_after"].whole, []
    if accuracy["long_after"] < accuracy["base_cut"] - 2 * (after.standard_error or 0.0):
        problems.append("long_after is more than two standard errors below base_cut")
    if accuracy["long_after"] <= accuracy["long_before"] + MIN_GAIN:
        problems.append(f"long_after is not {MIN_GAIN} points above long_before")
    if after.num_selected < MIN_SELECTED:
        problems.append(f"fewer than {MIN_SELECTED} selected tokens were evaluated")
    return problems


if __name__ == "__main__":
    demo = Path(sys.argv[1])
    evaluation = read_evaluation(demo / "evaluation" / Evaluation.FILE)
    summary = summarize(demo, evaluation)
    write_json(demo / "summary.json", summary)
    print(text_table(accuracy_table(evaluation)))
    print(f"page: {demo / 'evaluation' / PAGE_FILE}")
    print(f"exported to: {summary['exported_to']}")
    if problems := shortcomings(evaluation):
        sys.exit(f"the demo failed: {'; '.join(problems)}")
