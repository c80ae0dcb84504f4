"""Models and held-out rows to accuracies, a picture and a page."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from longmlm.batches.steps import check_rows_fit_model
from longmlm.config import to_toml
from longmlm.data.published import folder_of_rows, open_named_rows, pin_rows
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import CheckpointError
from longmlm.evaluation.examples import filled_masks
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import Measured, measure
from longmlm.evaluation.views import cut, whole, windows
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import LoadedModel, load_model, weights_sha256
from longmlm.model.mlm import MlmObjective
from longmlm.reports.evaluation import as_json, cells, write_evaluation
from longmlm.reports.tables import text_table
from longmlm.runtime.collectives import broadcast_from_main, local_main_first
from longmlm.runtime.launch import launch
from longmlm.runtime.precision import resolved_precision
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.training import tracking
from longmlm.training.checkpoint import model_folder

VIEWS = (
    {"base_cut": "cut", "base_windows": "windows"},
    {"long_before": "whole"},
    {"long_after": "whole", "long_after_cut": "cut"},
)
NUM_EXAMPLES = 8


def evaluate(config: EvaluateConfig) -> None:
    """Measures the models on the same frozen masks, writes the results and prints their table."""
    curve = curve_of(config.run)
    before, after = model_folder(config.long_before), config.long_after and model_folder(config.long_after)
    precision = resolved_precision(config.recipe.precision)
    accelerator = launch()
    config, rows = held_out_rows(config, accelerator)
    sources = sources_of(config, rows, after)
    models = loaded(rows, config.base, [str(name) for name in (before, after) if name])
    for note in (note for model in models for note in model.notes):
        accelerator.print(note)
    vocabulary = vocabulary_of_pretrained(models[0].tokenizer, config.base)
    num_positions = architecture_of(models[0].model).num_positions
    frozen = FrozenRows(rows, config.recipe.held_out, vocabulary.maskable, vocabulary.special)
    shorter = {"num_positions": num_positions, "special": vocabulary.special}
    views = {"cut": partial(cut, **shorter), "windows": partial(windows, **shorter), "whole": whole}

    measured: dict[str, Measured] = {}
    objectives = [MlmObjective(model.model.to(accelerator.device), precision == "bf16") for model in models]
    for objective, named_views in zip(objectives, VIEWS, strict=False):
        for result, view in named_views.items():
            measured[result] = measure(objective, frozen, views[view], num_positions, accelerator, result)
    if accelerator.is_main_process:
        examples = filled_masks(objectives[-1], models[-1].tokenizer, frozen, NUM_EXAMPLES, accelerator.device)
        of_hub = {"base_revision": models[0].revision, "before_revision": models[1].revision}
        sources |= {"precision": precision} | {key: commit for key, commit in of_hub.items() if commit}
        evaluation = as_json(measured, frozen, num_positions, sources, curve, examples)
        made_by = f"# python -m pipelines.evaluate settings.toml\n{to_toml(config)}"
        write_evaluation(evaluation, Path(config.output), made_by)
        print(text_table(cells(evaluation)))
        print(f"page: {Path(config.output) / 'index.html'}")


def loaded(rows: Rows, base: str, long: Sequence[str]) -> list[LoadedModel]:
    """Returns the base model, at the commit that the long ones were made of, and those, once all can read the rows.

    Raises DataError when one cannot.
    """
    models = [load_model(name) for name in long]
    extension = models[0].provenance.extension
    models.insert(0, load_model(base, extension.base.revision if extension and extension.base.name == base else None))
    for number, (name, model) in enumerate(zip((base, *long), models, strict=True)):
        num_positions = architecture_of(model.model).num_positions if number else None
        check_rows_fit_model(rows, vocabulary_of_pretrained(model.tokenizer, name), num_positions)
    return models


def held_out_rows(config: EvaluateConfig, accelerator: Accelerator) -> tuple[EvaluateConfig, Rows]:
    """Returns the settings, and the held-out rows that they name, those on the hub at their commit."""
    name = broadcast_from_main(accelerator, lambda: pin_rows(config.rows))
    local_main_first(accelerator, lambda: folder_of_rows(name, ["held_out"]))
    return replace(config, rows=name), open_named_rows(name, "held_out")


def sources_of(config: EvaluateConfig, rows: Rows, after: str | Path | None) -> dict[str, str]:
    """Returns where rows and models lie, with hashes by which a release knows that it is about them."""
    sources = {"rows": config.rows, "base": config.base, "before": config.long_before}
    sources["rows_sha256"] = rows.sha256
    return sources | ({"after": str(config.long_after), "after_sha256": weights_sha256(after)} if after else {})


def curve_of(run: str | None) -> list[dict[str, Any]]:
    """Returns the evaluations of a run, without their examples; raises CheckpointError when the folder holds none."""
    if run is None:
        return []
    lines = (line for line in tracking.read(Path(run)) if "held_out" in line)
    curve = [{key: value for key, value in line.items() if key != "examples"} for line in lines]
    if not curve:
        raise CheckpointError(f"{run} holds no evaluations of a run: name the folder that pretrain.py wrote")
    return curve
