"""Checks before a release: the evaluation is of this model, and the exported files reach the reported accuracy."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from longmlm.artifacts.accuracy import Accuracy, PairAccuracy
from longmlm.artifacts.artifact import Input
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.batches.steps import check_rows_fit_model
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import ReleaseError, counted
from longmlm.evaluation.frozen import FrozenRows, whole
from longmlm.evaluation.measure import measure, measure_pairs
from longmlm.hubs.model_files import local_model_sha256
from longmlm.model.loading import class_for, library_errors
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.launch import launch, supported_precision
from longmlm.settings.masking import HeldOut
from longmlm.settings.pretrain import ComputePrecision
from longmlm.settings.release import ReleaseRecipe

ALWAYS_ALLOWED = 2  # predictions
DEVIATIONS = 5.0
ALLOW = " = true in [release.recipe] (in a file for release alone, [recipe]), and the card will say so"
FLIP_RATES = {"fp32": 1e-4, "rounded": 1e-2}  # of the selected tokens; observed rates are lower


@dataclass(frozen=True, slots=True)
class ReportedAccuracy:
    """An accuracy in percent, the file that reports it, and how to measure it again.

    `num_selected` is absent where the file does not state it.
    """

    accuracy: float
    file: str
    held_out: HeldOut
    precision: ComputePrecision
    num_selected: int | None = None


def evaluation_of(
    folder: str | None, provenance: Provenance, model_sha256: str, rows_sha256: str, recipe: ReleaseRecipe
) -> Evaluation | None:
    """Returns the evaluation in a folder; None for a model that was not extended and has none.

    Raises ReleaseError when a long model has none, when another model, rows or base model were measured, and, unless
    the recipe allows it, when the base model's accuracy was not recovered or short texts got worse; ArtifactError when
    the file cannot be used.
    """
    if folder is None:
        if provenance.extension:
            raise ReleaseError("a long model is released with its evaluation: set evaluation to its folder")
        return None
    path = Path(folder) / Evaluation.FILE
    evaluation = read_evaluation(path)
    if "long_after" not in evaluation.measured:
        raise ReleaseError(f"{path} has no long_after: run the evaluate stage with long_after set")
    if evaluation.accuracy("long_after") is None:
        raise ReleaseError(f"{path} has no selected tokens: hold out more documents, and evaluate again")
    sources, base = evaluation.sources, provenance.source or ModelSource(name="")
    is_different = {
        "other weights": sources.after_sha256 != model_sha256,
        "other rows": sources.rows_sha256 != rows_sha256,
        "a different base model": not _is_base(base, sources.base),
        "a different revision of the base model": base.revision not in (None, sources.base_revision),
    }
    if different := [what for what, differs in is_different.items() if differs]:
        raise ReleaseError(f"{path} was measured on {different[0]}: evaluate this model on these rows")
    check_recovered(evaluation, recipe)
    check_short_texts(evaluation, recipe)
    return evaluation


def _is_base(base: ModelSource, name: str) -> bool:
    """Returns whether a name or path means the base model of a release."""
    return name == base.name or base.as_input.is_same(Input(name, local_model_sha256(name)))


def check_recovered(evaluation: Evaluation, recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError, unless allowed, when a long model is clearly less accurate than its base model."""
    gain = evaluation.recovery
    if gain and evaluation.is_recovered is False and not recipe.allow_unrecovered:
        base = evaluation.to_recover
        compared = gain.compared_with(f"{base} {evaluation.accuracy(base):.2f} %")
        raise ReleaseError(
            f"long_after {evaluation.accuracy('long_after'):.2f} % is {compared}: train longer, with --more-steps, or "
            f"set allow_unrecovered{ALLOW}"
        )


def check_short_texts(evaluation: Evaluation, recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError, unless allowed, when a long model is clearly less accurate than its base on short texts."""
    change = evaluation.short_text_change
    if change and evaluation.is_worse_on_short_texts and not recipe.allow_worse_short_texts:
        raise ReleaseError(
            f"on rows cut to {counted(evaluation.base_positions, 'token')}, long_after_cut is "
            f"{change.compared_with('base_cut')}: train longer or with a lower learning rate, or set "
            f"allow_worse_short_texts{ALLOW}"
        )


def exported_accuracy(
    folder: Path, rows: Rows, evaluation: Evaluation | None, provenance: Provenance, recipe: ReleaseRecipe
) -> float | None:
    """Returns the accuracy of the model in the folder, measured again on the same rows and masks as the reported one.

    It is computed in the report's precision where this machine supports it, else in fp32. None where nothing was
    reported, and for a model with fewer positions than the rows have tokens. Raises ReleaseError when more predictions
    differ than rounding explains, and, unless the recipe allows it, when it is below that of the base model.
    """
    reported = reported_accuracy(evaluation, provenance, rows)
    if reported is None:
        return None
    with library_errors(f"{folder} cannot be loaded"):  # as users load it; whether weights are missing is proven later
        model = class_for(provenance.pairs).from_pretrained(folder, dtype="float32")
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    precision = supported_precision(reported.precision)
    objective = MlmObjective(model, precision, provenance.isolates_documents)
    if objective.parts.num_positions < rows.row_length:
        return None
    vocabulary = vocabulary_of_pretrained(tokenizer, str(folder))
    check_rows_fit_model(rows, vocabulary)
    pairs = evaluation.pairs if evaluation else provenance.pair_accuracy
    masks = (reported.held_out, vocabulary.maskable, vocabulary.special)
    frozen = FrozenRows(rows, *masks, pairs=provenance.pairs)
    accelerator = launch(precision)
    objective.to(accelerator.device)
    measured = measure(objective, frozen, whole, rows.row_length, accelerator, "verify")
    is_rounded = recipe.weights != "fp32" or reported.precision != "no"
    check_same_accuracy(measured.whole, reported, is_rounded)
    if pairs:
        check_same_pairs(measure_pairs(objective, frozen, accelerator, "verify"), pairs, is_rounded)
    if evaluation:
        of_files = replace(evaluation, measured={**evaluation.measured, "long_after": measured})
        check_recovered(of_files, recipe)
    return measured.whole.accuracy


def reported_accuracy(evaluation: Evaluation | None, provenance: Provenance, rows: Rows) -> ReportedAccuracy | None:
    """Returns the accuracy that the card will state: long_after or, without an evaluation, the run's accuracy.

    None where there is neither. Raises ReleaseError when it was measured on other rows.
    """
    if evaluation:
        after = evaluation.measured["long_after"].whole
        assert after.accuracy is not None
        how = (evaluation.held_out, evaluation.precision, after.num_selected)
        return ReportedAccuracy(after.accuracy, Evaluation.FILE, *how)
    trained = provenance.trained
    if trained is None or trained.accuracy is None:
        return None
    if trained.rows_sha256 != rows.sha256:
        raise ReleaseError("the run measured its accuracy on other rows: name the rows that it was trained on")
    if trained.held_out is None or trained.precision is None:
        raise ReleaseError(
            f"{Provenance.FILE} does not say how its accuracy of {trained.accuracy:.2f} % was measured, so it cannot "
            "be verified: run the evaluate stage on this model"
        )
    return ReportedAccuracy(trained.accuracy, Provenance.FILE, trained.held_out, trained.precision)


def check_same_accuracy(measured: Accuracy, reported: ReportedAccuracy, is_rounded: bool) -> None:
    """Raises ReleaseError when different tokens are selected, or more predictions differ than rounding explains."""
    if reported.num_selected is not None and reported.num_selected != measured.num_selected:
        raise ReleaseError(
            f"{reported.file} counts {counted(reported.num_selected, 'selected token')}, but these rows have "
            f"{measured.num_selected:,} under the same masks: evaluate the model on these rows"
        )
    accuracy = math.nan if measured.accuracy is None else measured.accuracy
    differing = abs(accuracy - reported.accuracy) / 100 * measured.num_selected
    explained = most_flips(measured.num_selected, is_rounded)
    if not differing <= explained:
        raise ReleaseError(
            f"the exported model reaches {accuracy:.2f} % on {counted(measured.num_selected, 'held-out token')}, "
            f"{reported.file} reports {reported.accuracy:.2f} %: {differing:,.0f} predictions differ, but rounding "
            f"explains at most {explained:,.0f}: export again, or evaluate the model again"
        )


def check_same_pairs(measured: PairAccuracy | None, reported: PairAccuracy, is_rounded: bool) -> None:
    """Raises ReleaseError when other pairs were measured, or more predictions differ than rounding explains."""
    count = reported.num_pairs
    differing = abs(measured.accuracy - reported.accuracy) / 100 * count if measured else math.nan
    if measured is None or measured.num_pairs != count or not differing <= most_flips(count, is_rounded):
        raise ReleaseError(
            f"on pairs, the exported model reaches {measured or 'nothing'}, but {reported} was reported: export again, "
            "or evaluate the model again"
        )


def most_flips(num_selected: int, is_rounded: bool) -> float:
    """Returns by how many correct predictions a faithful copy may differ from the original.

    Sums in a different order and weights in half precision flip some predictions, in either direction with the same
    probability: five standard deviations of that many coin tosses are allowed, plus two for small numbers of tokens.
    """
    rate = FLIP_RATES["rounded" if is_rounded else "fp32"]
    return ALWAYS_ALLOWED + DEVIATIONS * math.sqrt(rate * num_selected)
