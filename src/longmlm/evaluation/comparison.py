"""Comparison of a base model with its long model, before and after training, on the same frozen masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from accelerate import Accelerator

from longmlm.artifacts.accuracy import Measured, bin_starts
from longmlm.artifacts.evaluation import Evaluation, EvaluationSources, ViewName
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary, vocabulary_of_pretrained
from longmlm.evaluation.examples import filled_masks
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import measure
from longmlm.evaluation.views import Viewer, cut, whole, windows
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import MlmObjective

NUM_EXAMPLES = 8


@dataclass(frozen=True, slots=True)
class ComparedModels:
    """The base model, and the long model before and, if it was trained, after training."""

    base: LoadedModel
    long: tuple[LoadedModel, ...]
    vocabulary: Vocabulary

    @property
    def base_positions(self) -> int:
        """Usable positions of the base model."""
        return architecture_of(self.base.model).num_positions

    @property
    def notes(self) -> list[str]:
        """What loading the models had to say."""
        return [note for loaded in (self.base, *self.long) for note in loaded.notes]


def load_models(rows: Rows, base: str, long: Sequence[str | Path]) -> ComparedModels:
    """Returns the base model, at the revision that the long models were made from, and the long models.

    Raises DataError when the rows were made by another tokenizer, or are longer than a long model reads.
    """
    names = [str(name) for name in long]
    models = tuple(load_model(name) for name in names)
    extension = models[0].provenance.extension
    base_model = load_model(base, extension.base.revision if extension and extension.base.name == base else None)
    vocabulary = vocabulary_of_pretrained(base_model.tokenizer, base)
    check_rows_fit_model(rows, vocabulary)
    for name, loaded in zip(names, models, strict=True):
        num_positions = architecture_of(loaded.model).num_positions
        check_rows_fit_model(rows, vocabulary_of_pretrained(loaded.tokenizer, name), num_positions)
    return ComparedModels(base_model, models, vocabulary)


def compare(
    models: ComparedModels,
    frozen: FrozenRows,
    sources: EvaluationSources,
    curve: tuple[EvaluationMetrics, ...],
    precision: Literal["no", "bf16"],
    accelerator: Accelerator,
) -> Evaluation:
    """Returns the accuracy of every view of every model, with examples filled in by the last model."""
    base_positions = models.base_positions
    base_view = {"base_positions": base_positions, "special": frozen.special}
    cut_row, row_windows = partial(cut, **base_view), partial(windows, **base_view)
    views: tuple[dict[ViewName, Viewer], ...] = (
        {"base_cut": cut_row, "base_windows": row_windows},
        {"long_before": whole},
        {"long_after": whole, "long_after_cut": cut_row},
    )
    loaded = (models.base, *models.long)
    objectives = [MlmObjective(one.model.to(accelerator.device), precision == "bf16") for one in loaded]
    measured: dict[ViewName, Measured] = {}
    for objective, views_of_model in zip(objectives, views, strict=False):
        for name, view in views_of_model.items():
            measured[name] = measure(objective, frozen, view, base_positions, accelerator, name)
    examples = filled_masks(objectives[-1], loaded[-1].tokenizer, frozen, NUM_EXAMPLES, accelerator.device)
    return Evaluation(
        row_length=frozen.rows.row_length,
        base_positions=base_positions,
        position_starts=bin_starts(base_positions, frozen.rows.row_length),
        num_rows=len(frozen.row_ids),
        held_out=frozen.settings,
        precision=precision,
        sources=sources,
        measured=measured,
        curve=curve,
        examples=tuple(examples),
    ).signed()
