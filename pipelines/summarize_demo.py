"""A finished demo to its table and summary.json; exit code 1 when the long model did not recover: FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any

from longmlm.artifacts.artifact import read
from longmlm.artifacts.run import RunSummary
from longmlm.folders import write_json
from longmlm.reports.evaluation import cells
from longmlm.reports.tables import text_table

LEAST_SELECTED = 20_000
LEAST_GAIN = 2.0


def summarize(demo: Path) -> dict[str, Any]:
    """Returns the figures of the demo, accuracies in percent."""
    evaluation = json.loads((demo / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))
    run = read(RunSummary, demo / "run" / RunSummary.FILE)
    measured = evaluation["measured"]
    return {
        **{name: one["whole"]["accuracy"] for name, one in measured.items()},
        "blocks_before": [block["accuracy"] for block in measured["long_before"]["blocks"]],
        "blocks_after": [block["accuracy"] for block in measured["long_after"]["blocks"]],
        "standard_error": measured["long_after"]["whole"]["standard_error"],
        "num_selected": measured["long_after"]["whole"]["num_selected"],
        "num_steps": run.state.step,
        "recovered_at_step": run.state.recovered_at_step,
        "train_tokens_per_second": run.train_tokens_per_second,
        "exported_to": str(demo / "roberta-mini-384"),
    }


def shortcomings(summary: dict[str, Any]) -> list[str]:
    """Returns what a demo that proves the method must not show."""
    after, error = summary["long_after"], summary["standard_error"]
    found = []
    if after < summary["base_cut"] - 2 * error:
        found.append("long_after is more than two standard errors below base_cut")
    if after <= summary["long_before"] + LEAST_GAIN:
        found.append(f"long_after is not {LEAST_GAIN} points above long_before")
    if summary["num_selected"] < LEAST_SELECTED:
        found.append(f"fewer than {LEAST_SELECTED} selected tokens were evaluated")
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    summary = summarize(folder)
    write_json(folder / "summary.json", summary)
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))
    print(text_table(cells(evaluation)))
    print(f"page: {folder / 'evaluation' / 'index.html'}")
    print(f"exported to: {summary['exported_to']}")
    if found := shortcomings(summary):
        sys.exit(f"the demo failed: {'; '.join(found)}")
