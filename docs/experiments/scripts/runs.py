"""What the experiment scripts share: a base model with held-out rows, and runs trained as the pretrain stage does."""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.config import read
from longmlm.data.rows import open_named_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows, RowView, viewer_of
from longmlm.evaluation.measure import measure
from longmlm.model.extension import long_table, with_positions
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of
from longmlm.runtime.launch import launch, resolved_precision, shut_down
from longmlm.settings.extend import ExtendRecipe, Initialisation
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.pretrain import ComputePrecision, PretrainConfig
from longmlm.stages.pretrain import execute, open_run
from longmlm.training.backend import PlainBackend
from longmlm.training.run import Run, Task


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model, its number of positions, and held-out rows under their masks."""

    loaded: LoadedModel
    num_positions: int
    frozen: FrozenRows

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Returns the model and the rows that the command line names."""
        loaded = load_model(options.model)
        vocabulary = vocabulary_of_pretrained(loaded.tokenizer, options.model)
        rows, held_out = open_named_rows(options.rows, "held_out"), HeldOut(max_rows=options.max_rows)
        frozen = FrozenRows(rows, held_out, vocabulary.maskable, vocabulary.special, 4)
        return cls(loaded, len(position_table_of(loaded.model).usable_rows), frozen)

    def measure(self, objective: MlmObjective, view: RowView) -> Measured:
        """Returns the accuracy on the rows, seen in this view."""
        viewer = viewer_of(view, self.num_positions, self.frozen.special)
        return measure(objective, self.frozen, viewer, self.num_positions, None)


def base_model_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that BaseModel.of reads, and the number of positions of the long model."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--num-positions", type=int, required=True)
    parser.add_argument("--max-rows", type=int, default=48)
    return parser


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run before its first step: an experiment may replace its task, and train another objective."""

    pipeline: ResolvedPipeline
    config: PretrainConfig
    precision: ComputePrecision
    task: Task
    run: Run

    @classmethod
    def of(cls, folder: Path, name: str, **recipe: Any) -> Self:
        """Returns a new run FOLDER/NAME of the pipeline's pretrain stage, with these values in its recipe."""
        pipeline = read(ResolvedPipeline, [folder / "pipeline.toml"])
        config = pipeline.pretrain
        runtime = replace(config.runtime, stop_when_recovered=False)
        config = replace(config, recipe=replace(config.recipe, **recipe), runtime=runtime, run=str(folder / name))
        precision = resolved_precision(config.recipe.precision)
        task, run, resumed_from = open_run(config, launch(precision, 1, runtime.num_threads, runtime.hang_seconds))
        assert resumed_from is None, f"{config.run} exists: a run of an experiment script cannot be resumed"
        return cls(pipeline, config, precision, task, run)

    def base_model(self) -> PreTrainedModel:
        """Returns the pipeline's base model."""
        assert self.pipeline.extend is not None
        return load_model(self.pipeline.extend.base).model

    def train(self, objective: MlmObjective | None = None) -> MetricsFile:
        """Trains this objective, by default the pretrain stage's, and returns the metrics of all steps."""
        run = self.run
        if objective is not None:
            recipe = replace(self.config.recipe, precision=self.precision)
            run = replace(run, backend=PlainBackend.wrap(run.accelerator, objective.train(), recipe))
        execute(self.config, self.task, run, None)
        shut_down(run.accelerator)
        return MetricsFile(run.folder)


def curve(metrics: MetricsFile) -> str:
    """Returns the held-out accuracies of a run by step."""
    lines = [line for line in metrics.lines() if isinstance(line, EvaluationMetrics)]
    return " ".join(f"{line.step}: {line.held_out.whole.accuracy:.2f}" for line in lines)


def extended(loaded: LoadedModel, num_positions: int, initialisation: Initialisation) -> LoadedModel:
    """Returns a model with a longer table and full attention."""
    recipe = ExtendRecipe(num_positions=num_positions, initialisation=initialisation)
    trained = len(position_table_of(loaded.model).usable_rows)
    return with_positions(loaded, long_table(loaded.model, Extension.of(recipe, ModelSource(name="base"), trained)))


def add_to(output: Path, found: list[dict[str, Any]], same: tuple[str, ...]) -> None:
    """Adds objects to a JSON file, in place of those with the same values of `same`."""
    earlier = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else []
    new = [[one.get(key) for key in same] for one in found]
    earlier = [one for one in earlier if [one.get(key) for key in same] not in new]
    output.write_text(json.dumps([*earlier, *found], indent=1) + "\n", encoding="utf-8")
