"""Which masked tokens longer context helps with: those that the row repeats beyond the base model's chunk.

    python docs/experiments/scripts/repeated_tokens.py --model CONTROL --rows ROWS --max-rows 126 \
        --long window=RUN hierarchical=RUN

src/longmlm/evaluation/frozen.py defines the groups. `longmlm evaluate --base CONTROL` measures the difference between
whole rows and the control in chunks by itself. Here each long model also reads the rows in chunks as the base model
does: the difference between its whole rows and its chunks is what it gains from the longer context, that between its
chunks and the base model's is what the change has cost it.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runs import BaseModel

from longmlm.artifacts.accuracy import CHUNK, NOWHERE, ROW, Accuracy, Difference, paired_difference
from longmlm.evaluation.frozen import RowView, viewer_of
from longmlm.evaluation.measure import Subject, tallies
from longmlm.evaluation.tally import Tally
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.launch import resolved_precision
from longmlm.training.run_folder import model_or_best_checkpoint

GROUPS = {"in the chunk": CHUNK, "elsewhere": ROW, "nowhere": NOWHERE, "all": None}


def report(base: BaseModel, models: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns by group its tokens, the base model's accuracy, and each long model's accuracies and differences."""
    precision, found = resolved_precision("auto"), {}
    control = _tally(base, MlmObjective(base.loaded.model, precision), "chunks")
    for name, folder in models.items():
        objective = MlmObjective(load_model(model_or_best_checkpoint(folder)).model, precision)
        found[name] = _tally(base, objective, "chunks"), _tally(base, objective, "whole")
    return {
        name: {
            "tokens": _accuracy(control, group).num_selected,
            "base_in_chunks": _accuracy(control, group).accuracy,
            "models": {model: _of_model(chunks, whole, control, group) for model, (chunks, whole) in found.items()},
        }
        for name, group in GROUPS.items()
    }


def _tally(base: BaseModel, objective: MlmObjective, view: RowView) -> Tally:
    subject = Subject(objective, viewer_of(view, base.num_positions, base.frozen.special))
    return tallies({view: subject}, base.frozen, base.num_positions, None)[view]


def _accuracy(found: Tally, group: str | None) -> Accuracy:
    measured = found.measured
    return measured.groups["occurrence"][group] if group else measured.whole


def _gain(one: Tally, other: Tally, group: str | None) -> Difference | None:
    return one.gains_over(other)["occurrence"][group] if group else paired_difference([one.measured], [other.measured])


def _of_model(chunks: Tally, whole: Tally, control: Tally, group: str | None) -> dict[str, Any]:
    pairs = {
        "own_chunks_minus_base": (chunks, control),
        "whole_minus_own_chunks": (whole, chunks),
        "whole_minus_base": (whole, control),
    }
    accuracies = {"chunks": _accuracy(chunks, group).accuracy, "whole": _accuracy(whole, group).accuracy}
    gains = {name: _gain(one, other, group) for name, (one, other) in pairs.items()}
    return accuracies | {key: gain and asdict(gain) for key, gain in gains.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the base model, or a control run")
    parser.add_argument("--rows", required=True)
    parser.add_argument("--max-rows", type=int, default=48)
    parser.add_argument("--long", nargs="+", required=True, metavar="NAME=MODEL")
    parser.add_argument("--output", type=Path, default=Path("out/repeated-tokens.json"))
    options = parser.parse_args()
    options.model = model_or_best_checkpoint(options.model)
    long_models = dict(pair.split("=", 1) for pair in options.long)
    text = json.dumps(report(BaseModel.of(options), long_models), indent=1)
    options.output.write_text(f"{text}\n", encoding="utf-8")
    print(text)
