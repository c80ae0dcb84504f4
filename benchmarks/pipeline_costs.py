"""Estimated memory and GPU hours of the shipped pipelines: prints the table, or writes it with --write."""

import copy
import functools
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from longmlm.config import parse
from longmlm.data.disk import GB
from longmlm.model.architecture import architecture_of
from longmlm.model.cost import GPUS, Gpu, Work, cost_of
from longmlm.model.families import check_num_positions
from longmlm.model.position_table import position_table_of, replace_positions
from longmlm.planning.estimate import Machine, TrainingPlan, training_plan
from longmlm.planning.size import estimated_rows
from longmlm.planning.speed import gpu_tokens_per_second
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import SHIPPED

ROOT = Path(__file__).parents[1]
MODELS = tomllib.loads((ROOT / "benchmarks" / "models.toml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "pipelines.md"
LENGTHS = (1024, 1536, 2048, 4096)
SHOWN = (1536, 4096)  # on the page; the comments in the pipelines' files have all
SMALL, LARGE = 24 << 30, 80 << 30
CORPUS_TOKENS = 300_000_000  # hours do not depend on it, as long as it gives enough held-out rows


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a pipeline at a length: GB with one row, rows in 24 and 80 GB, GB with the latter, hours on A100 and H100."""

    length: int
    least_gb: float
    small_rows: int
    large_rows: int
    large_gb: float
    a100_hours: float
    h100_hours: float

    @property
    def cells(self) -> list[str]:
        """The columns of the tables."""
        gb = f"{self.least_gb:.1f}", f"{self.large_gb:.1f}"
        rows = str(self.small_rows or "none"), str(self.large_rows)
        return [str(self.length), gb[0], *rows, gb[1], f"{self.a100_hours:.1f}", f"{self.h100_hours:.1f}"]


HEADS = ("length", "GB, 1 row", "rows in 24 GB", "rows in 80 GB", "GB", "A100 hours", "H100 hours")


@functools.cache
def base_of(name: str) -> PreTrainedModel:
    """Returns the base model of a shipped pipeline without weights."""
    shape = {key: value for key, value in MODELS[name].items() if key != "name"}
    pad = {"pad_token_id": 0 if shape["model_type"] == "bert" else 1}
    with torch.device("meta"):
        return AutoModelForMaskedLM.from_config(AutoConfig.for_model(**pad, **shape))


def extended(base: PreTrainedModel, length: int) -> PreTrainedModel:
    """Returns a copy of the model, without weights, with so many positions."""
    parts = architecture_of(model := copy.deepcopy(base))
    check_num_positions(parts.num_positions, length)
    replace_positions(model, torch.empty(length, position_table_of(model).rows.embedding_dim, device="meta"))
    return model


@functools.cache
def estimate(name: str, length: int) -> Estimate:
    """Returns what the pipeline takes at a length with its default recipe."""
    config = parse(ResolvedPipeline, [name, f"length-{length}"])
    recipe = config.pretrain.recipe
    model = extended(base_of(name), length)
    work = Work(length, recipe.masking.selected_fraction, is_half=True, has_gpu=True)
    cost, rows = cost_of(model, work), estimated_rows([CORPUS_TOKENS], config.prepare.recipe)

    def planned(gpu: Gpu, memory_bytes: int) -> TrainingPlan:
        machine = Machine("", memory_bytes, 1, gpu_tokens_per_second(gpu, cost, work), "")
        return training_plan(rows, cost, work, machine, recipe, config.pretrain.runtime)

    a100, h100 = planned(GPUS["A100|A800"], LARGE), planned(GPUS["H100|H800"], LARGE)
    return Estimate(
        length=length,
        least_gb=(cost.state_bytes + cost.row_bytes) / GB,
        small_rows=planned(GPUS["A100|A800"], SMALL).rows_per_micro_batch,
        large_rows=a100.rows_per_micro_batch,
        large_gb=a100.memory_bytes / GB,
        a100_hours=a100.hours,
        h100_hours=h100.hours,
    )


def comment(name: str) -> str:
    """Returns the lines about costs at the head of a pipeline's file."""
    rows = [["length", "GB, 1 row", "rows/24 GB", "rows/80 GB", "GB", "A100 h", "H100 h"]]
    rows += [estimate(name, length).cells for length in LENGTHS]
    lines = ["".join(f"{cell:>12}" for cell in cells).rstrip() for cells in rows]
    return "\n".join(
        [
            "# Estimates for one GPU and the default recipe, not measured (documentation: Ready pipelines):",
            *(f"#{line}" for line in lines),
        ]
    )


def table() -> str:
    """Returns the table of all pipelines in Markdown."""
    lines = [f"| pipeline | {' | '.join(HEADS)} |", f"|---|{'---:|' * len(HEADS)}"]
    for name in MODELS:
        rows = (" | ".join(estimate(name, length).cells) for length in SHOWN)
        lines += [f"| {title} | {row} |" for title, row in zip((name, ""), rows, strict=True)]
    return "\n".join(lines)


def with_comment(name: str) -> str:
    """Returns the text of a pipeline's file with its costs as they are now."""
    text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    return re.sub(r"# Estimates.*\n(#.*\n)*", lambda _: f"{comment(name)}\n", text)


def with_table() -> str:
    """Returns the text of the page with its table as it is now."""
    return re.sub(r"\| pipeline \| length.*\n(\|.*\n)*", lambda _: f"{table()}\n", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for name in MODELS:
            (SHIPPED / f"{name}.toml").write_text(with_comment(name), encoding="utf-8")
        PAGE.write_text(with_table(), encoding="utf-8")
    else:
        print(table())
