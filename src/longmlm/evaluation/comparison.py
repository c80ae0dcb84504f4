"""Comparison of a base model with its long model, before and after training, on the same frozen masks."""

from collections.abc import Sequence

from accelerate import Accelerator

from longmlm.artifacts.accuracy import bin_starts
from longmlm.artifacts.evaluation import Evaluation, EvaluationSources, ViewName
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import ModelError
from longmlm.evaluation.filled_masks import filled_masks
from longmlm.evaluation.frozen import FrozenRows, check_predicts, viewer_of, whole
from longmlm.evaluation.measure import Subject, measure_pairs, tallies
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import LoadedModel, load_model, load_trained
from longmlm.model.mlm import MlmObjective
from longmlm.model.terms import with_tokens_of
from longmlm.runtime.launch import resolved_precision
from longmlm.settings.evaluate import EvaluateRecipe

NUM_EXAMPLES = 8


def load_models(rows: Rows, base: str, long: Sequence[str]) -> list[LoadedModel]:
    """Returns the base model, at the revision that the first long model was made from, and the long models.

    The base model gets the tokens that were added to the long model. Raises ModelError when the base model is not of
    the length that was extended, and DataError when the rows were made with a different tokenizer, or are longer than
    a long model reads.
    """
    models = [load_trained(name) for name in long]
    extension, source = models[0].provenance.extension, models[0].provenance.source
    base_model = load_model(base, source.revision if source and source.name == base else None)
    base_model = with_tokens_of(base_model, models[0].tokenizer)
    check_rows_fit_model(rows, vocabulary_of_pretrained(base_model.tokenizer, base))
    base_positions = architecture_of(base_model.model).num_positions
    if extension and extension.base_positions != base_positions:
        raise ModelError(
            f"{base} has {base_positions} positions, the model that {long[0]} was extended from has "
            f"{extension.base_positions}: set base to {extension.base.name}"
        )
    for name, loaded in zip(long, models, strict=True):
        num_positions = architecture_of(loaded.model).num_positions
        check_rows_fit_model(rows, vocabulary_of_pretrained(loaded.tokenizer, name), num_positions)
    return [base_model, *models]


def compare(
    models: Sequence[LoadedModel],
    frozen: FrozenRows,
    sources: EvaluationSources,
    curve: tuple[EvaluationMetrics, ...],
    recipe: EvaluateRecipe,
    accelerator: Accelerator,
) -> Evaluation:
    """Returns the accuracy of every view of the base model, and of the models before and after training.

    `sources` says which of these two exist. If the base model reads whole rows, each model has a single view. A model
    that was trained on isolated documents reads them so. The last model fills in the examples and, if `frozen` has
    pairs, is measured on them. Raises ModelError for a base model of a shorter length that predicts nothing.
    """
    row_length, precision = frozen.rows.row_length, resolved_precision(recipe.precision)
    base_positions = min(architecture_of(models[0].model).num_positions, row_length)
    cut_row, row_chunks = (viewer_of(view, base_positions, frozen.special) for view in ("cut", "chunks"))
    base, *long = [
        MlmObjective(loaded.model.to(accelerator.device), precision, loaded.provenance.isolates_documents)
        for loaded in models
    ]
    subjects: dict[ViewName, Subject] = {"base_cut": Subject(base, cut_row), "base_chunks": Subject(base, row_chunks)}
    if sources.before:
        subjects["long_before"] = Subject(long[0], whole)
    if sources.after:
        subjects |= {"long_after": Subject(long[-1], whole), "long_after_cut": Subject(long[-1], cut_row)}
    if base_positions == row_length:
        subjects = {name: one for name, one in subjects.items() if name not in ("base_chunks", "long_after_cut")}
    found = tallies(subjects, frozen, base_positions, accelerator, "evaluate")
    if base_positions < row_length:  # else it may be a model whose new head was trained
        check_predicts(found["base_cut"].measured.whole, frozen, cut_row, sources.base)
    pairs = measure_pairs(long[-1], frozen, accelerator, "evaluate") if frozen.pairs else None
    examples = filled_masks(long[-1], models[-1].tokenizer, frozen, NUM_EXAMPLES)
    return Evaluation(
        row_length=row_length,
        base_positions=base_positions,
        position_starts=bin_starts(base_positions, row_length),
        num_rows=len(frozen.row_ids),
        recipe=recipe,
        precision=precision,
        sources=sources,
        measured={name: sums.measured for name, sums in found.items()},
        gains=found["long_after"].gains_over(found["base_chunks"]) if {"long_after", "base_chunks"} <= {*found} else {},
        curve=curve,
        examples=tuple(examples),
        isolated=tuple(name for name, subject in subjects.items() if subject.objective.isolates_documents),
        pairs=pairs,
    ).signed()
