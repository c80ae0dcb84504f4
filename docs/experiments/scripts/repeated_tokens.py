"""Which masked tokens longer context helps with: those that the row repeats beyond the base model's chunk.

    python docs/experiments/scripts/repeated_tokens.py --model CONTROL --rows ROWS --max-rows 126 \
        --long window=RUN hierarchical=RUN

A masked token belongs to one of three groups, by where else the model can see the same token:

- `in the chunk`: in the chunk of the base model's n positions that has it;
- `elsewhere`: not there, but in another chunk of the row;
- `nowhere`: in no other position of the row.

Example: n = 6, so chunks have 4 tokens of content; the row `A B [A] C | D [B] E C | F G [D] H` has A in its own chunk,
B elsewhere (in the first chunk), and D elsewhere (in the second).

Each long model reads whole rows, and the same rows in chunks as the base model does. The difference between both is
what it gains from the longer context; that between its chunks and the base model's is what the change has cost it.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64
from runs import BaseModel

from longmlm.artifacts.accuracy import Difference, difference
from longmlm.batches.collate import collate
from longmlm.batches.masking import MaskedRow
from longmlm.evaluation.frozen import RowView, View, viewer_of
from longmlm.evaluation.measure import inference
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.launch import resolved_precision
from longmlm.training.run_folder import model_or_best_checkpoint

GROUPS = ("in the chunk", "elsewhere", "nowhere")
BASE = "base, chunks"


@dataclass(frozen=True, slots=True)
class Predictions:
    """For each row, the group of each selected token, and whether each reader predicts it correctly."""

    groups: list[Int64[np.ndarray, " selected"]]
    is_correct: dict[str, list[Bool[np.ndarray, " selected"]]]

    def totals(self, group: int | None) -> list[int]:
        """Returns the number of tokens of a group by row; of all groups for None."""
        return [int(chosen.sum()) for chosen in self._chosen(group)]

    def correct(self, reader: str, group: int | None) -> list[int]:
        """Returns the number of a group's correct predictions by row."""
        pairs = zip(self.is_correct[reader], self._chosen(group), strict=True)
        return [int((found & chosen).sum()) for found, chosen in pairs]

    def accuracy(self, reader: str, group: int | None) -> float:
        """Returns the accuracy in percent."""
        return 100 * sum(self.correct(reader, group)) / sum(self.totals(group))

    def gain(self, reader: str, other: str, group: int | None) -> Difference | None:
        """Returns the accuracy of one reader minus the other's, paired by row."""
        pairs = zip(self.correct(reader, group), self.correct(other, group), strict=True)
        return difference([mine - its for mine, its in pairs], self.totals(group))

    def _chosen(self, group: int | None) -> Iterator[Bool[np.ndarray, " selected"]]:
        return (groups == group if group is not None else groups >= 0 for groups in self.groups)


def groups_of(masked: MaskedRow, chunk_length: int) -> Int64[np.ndarray, " selected"]:
    """Returns the group of each selected token, for chunks of `chunk_length` tokens after the row's first."""
    seen, chunk = masked.row.input_ids, (np.arange(len(masked.row)) - 1) // chunk_length
    found = []
    for position, label in zip(masked.selected, masked.labels, strict=True):
        others = np.flatnonzero(seen == label)
        chunks = chunk[others[others != position]]
        found.append(0 if (chunks == chunk[position]).any() else 1 if len(chunks) else 2)
    return np.array(found, dtype=np.int64)


def predictions(base: BaseModel, models: Mapping[str, str]) -> Predictions:
    """Returns the predictions of the base model in chunks, and of the long models in chunks and on whole rows."""
    rows = [base.frozen.masked(row_id) for row_id in base.frozen.row_ids]
    groups = [groups_of(row, base.num_positions - 2) for row in rows]
    precision = resolved_precision("auto")
    found = {BASE: correct_predictions(MlmObjective(base.loaded.model, precision), base, rows, "chunks")}
    for name, folder in models.items():
        objective = MlmObjective(load_model(model_or_best_checkpoint(folder)).model, precision)
        found[f"{name}, chunks"] = correct_predictions(objective, base, rows, "chunks")
        found[f"{name}, whole"] = correct_predictions(objective, base, rows, "whole")
    return Predictions(groups, found)


def correct_predictions(
    objective: MlmObjective, base: BaseModel, rows: list[MaskedRow], view: RowView
) -> list[Bool[np.ndarray, " selected"]]:
    """Returns for each row whether its selected tokens are predicted correctly, in the order of their positions."""
    viewer = viewer_of(view, base.num_positions, base.frozen.special)
    with inference(objective):
        return [_correct(objective, viewer(row), base.frozen.special.pad) for row in rows]


def _correct(objective: MlmObjective, views: list[View], pad: int) -> Bool[np.ndarray, " selected"]:
    batch = collate([view.masked for view in views], None if objective.reads_packed_batches else pad)
    _, is_correct = objective.predict(batch)
    positions = np.concatenate([view.positions for view in views])
    return is_correct.bool().numpy()[np.argsort(positions)]


def report(found: Predictions, names: list[str]) -> dict[str, dict[str, Any]]:
    """Returns by group its tokens, the base model's accuracy, and each long model's accuracies and differences."""
    return {
        name: {
            "tokens": sum(found.totals(group)),
            "base_in_chunks": found.accuracy(BASE, group),
            "models": {model: _of_model(found, model, group) for model in names},
        }
        for group, name in [*enumerate(GROUPS), (None, "all")]
    }


def _of_model(found: Predictions, name: str, group: int | None) -> dict[str, Any]:
    chunks, whole = f"{name}, chunks", f"{name}, whole"
    gains = {
        "own_chunks_minus_base": found.gain(chunks, BASE, group),
        "whole_minus_own_chunks": found.gain(whole, chunks, group),
        "whole_minus_base": found.gain(whole, BASE, group),
    }
    accuracies = {"chunks": found.accuracy(chunks, group), "whole": found.accuracy(whole, group)}
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
    text = json.dumps(report(predictions(BaseModel.of(options), long_models), list(long_models)), indent=1)
    options.output.write_text(f"{text}\n", encoding="utf-8")
    print(text)
