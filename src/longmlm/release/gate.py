"""A released folder to the accuracy that it has, which must be the one that was reported."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longmlm.artifacts.provenance import Provenance
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.errors import ReleaseError
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import Accuracy, measure
from longmlm.evaluation.views import whole
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.reports.evaluation import EVALUATION, content_sha256
from longmlm.runtime.launch import launch
from longmlm.runtime.precision import resolved_precision
from longmlm.settings.held_out import HeldOut
from longmlm.settings.masking import Masking
from longmlm.settings.release import ReleaseConfig, WeightType

HANDFUL = 2  # hits
DEVIATIONS = 5.0
OTHERS = {
    "after_sha256": "other weights",
    "rows_sha256": "other rows",
    "base": "another base model",
    "base_revision": "another revision of the base model",
}
FLIPS = {"fp32": 1e-4, "rounded": 1e-2}  # of the selected tokens, more than were seen


@dataclass(frozen=True, slots=True)
class Reported:
    """An accuracy in percent, where it stands, and how it was measured, so that it can be measured again.

    `num_selected` is absent where it was not noted.
    """

    accuracy: float
    place: str
    held_out: HeldOut
    precision: str
    num_selected: int | None = None


def read_evaluation(folder: str | None, expected: Mapping[str, str], is_long: bool, allowed: bool) -> dict[str, Any]:
    """Returns evaluation.json of this model, empty for a model that was not extended.

    Raises ReleaseError for a long model when there is none, when it is damaged or was measured on something else than
    `expected` (after_sha256, rows_sha256, base), and, unless `allowed`, when the base's accuracy was not won back.
    """
    if folder is None:
        if is_long:
            raise ReleaseError("a long model is released with its evaluation: set evaluation to its folder")
        return {}
    path = Path(folder) / EVALUATION
    evaluation = _content(path)
    for key, value in expected.items():
        if evaluation["sources"].get(key) != value:
            raise ReleaseError(f"{path} was measured on {OTHERS[key]}: evaluate this model on these rows")
    long_after, base_cut = (evaluation["measured"][name]["whole"]["accuracy"] for name in ("long_after", "base_cut"))
    check_recovered(long_after, base_cut, allowed)
    return evaluation


def _content(path: Path) -> dict[str, Any]:
    """Returns evaluation.json as it was written; raises ReleaseError for one that cannot serve."""
    if not path.is_file():
        raise ReleaseError(f"{path} does not exist: run pipelines.evaluate first")
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReleaseError(f"{path} is damaged: it is no JSON") from error
    if not isinstance(evaluation, dict) or not {"measured", "sources", "gains"} <= evaluation.keys():
        raise ReleaseError(f"{path} is damaged: run pipelines.evaluate again")
    if "long_after" not in evaluation["measured"]:
        raise ReleaseError(f"{path} has no long_after: evaluate with long_after set")
    if evaluation.get("sha256") != content_sha256(evaluation):
        raise ReleaseError(f"{path} is not what pipelines.evaluate of this version wrote: run it again")
    if not evaluation["measured"]["long_after"]["whole"]["num_selected"]:
        raise ReleaseError(f"{path} measured nothing: hold out more documents, and evaluate again")
    return evaluation


def check_recovered(long_after: float, base_cut: float | None, allowed: bool) -> None:
    """Raises ReleaseError, unless allowed, for a long model that tells fewer tokens than its base model."""
    if base_cut is not None and long_after < base_cut and not allowed:
        raise ReleaseError(
            f"long_after {long_after:.2f} % is below base_cut {base_cut:.2f} %: train on, or set allow_unrecovered = "
            "true, and the card will say so"
        )


def accuracy_to_tell(
    folder: Path, rows: Rows, evaluation: Mapping[str, Any], provenance: Provenance, config: ReleaseConfig
) -> float | None:
    """Returns the accuracy of the model in the folder, once it is known to be the reported one, and not lost.

    None where none was reported, or not at the folder's length. Raises ReleaseError when it is another one, and,
    unless allowed, when it is below that of the base model.
    """
    told = reported(evaluation, provenance, rows)
    found = told and remeasured(folder, rows, told, config.recipe.weights)
    if not found:
        return None
    if evaluation:
        base_cut = evaluation["measured"]["base_cut"]["whole"]["accuracy"]
        check_recovered(found.accuracy, base_cut, config.recipe.allow_unrecovered)
    return found.accuracy


def check_trained(provenance: Provenance, name: str) -> None:
    """Raises ReleaseError for a model of which longmlm.json does not say how it was trained, as the card must."""
    if provenance.trained is None:
        raise ReleaseError(f"{name} was not trained by longmlm: release a run folder or one of its checkpoints")


def reported(evaluation: Mapping[str, Any], provenance: Provenance, rows: Rows) -> Reported | None:
    """Returns the accuracy that the card is going to tell: long_after, or without an evaluation that of the run.

    None where there is neither. Raises ReleaseError when it is not known how it was measured, or on other rows.
    """
    if evaluation:
        told = evaluation["measured"]["long_after"]["whole"]
        about = {**evaluation, "precision": evaluation["sources"].get("precision")}
        return _reported(told["accuracy"], EVALUATION, about, told["num_selected"])
    trained = provenance.trained
    if trained is None or trained.accuracy is None:
        return None
    if trained.rows_sha256 not in (None, rows.sha256):
        raise ReleaseError("the run measured its accuracy on other rows: name those that it was trained with")
    return _reported(trained.accuracy, Provenance.FILE, asdict(trained))


def _reported(accuracy: float, place: str, about: Mapping[str, Any], num_selected: int | None = None) -> Reported:
    try:
        content: dict[str, Any] = {**about["held_out"], "masking": Masking(**about["held_out"]["masking"])}
        held_out = HeldOut(**content)
        return Reported(accuracy, place, held_out, {"no": "no", "bf16": "bf16"}[about["precision"]], num_selected)
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(
            f"{place} does not say how its {accuracy:.2f} % were measured, so that they cannot be measured again: it "
            "is older than this version: evaluate the model anew with pipelines.evaluate"
        ) from error


def remeasured(folder: Path, rows: Rows, told: Reported, weights: WeightType) -> Accuracy | None:
    """Returns the accuracy of the model in the folder, loaded from there, on the rows and masks of the report.

    It is computed in the report's precision where this machine has it, else in fp32; None for a model that was cut
    shorter than the rows. Raises ReleaseError when more hits differ than rounding explains.
    """
    loaded = load_model(str(folder))
    if architecture_of(loaded.model).num_positions < rows.row_length:
        return None
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, str(folder))
    frozen = FrozenRows(rows, told.held_out, vocabulary.maskable, vocabulary.special)
    is_bf16 = told.precision == resolved_precision("auto") == "bf16"
    accelerator = launch()
    objective = MlmObjective(loaded.model.to(accelerator.device), is_bf16)
    bar = "measured again" if sys.stderr.isatty() else ""
    found = measure(objective, frozen, whole, rows.row_length, accelerator, bar).whole
    if told.num_selected not in (None, found.num_selected):
        raise ReleaseError(
            f"{told.place} counts {told.num_selected:,} selected tokens, these rows have {found.num_selected:,} under "
            "the same masks: evaluate the model on these rows"
        )
    is_rounded = weights != "fp32" or told.precision != "no"
    differing, allowed = hits_between(found, told), hits_allowed(found.num_selected, is_rounded)
    if not differing <= allowed:
        raise ReleaseError(
            f"the exported folder tells {found.accuracy:.2f} % of {found.num_selected:,} held-out tokens, {told.place} "
            f"reports {told.accuracy:.2f} %: {differing:,.0f} hits differ, rounding explains {allowed:,.0f}"
        )
    return found


def hits_between(found: Accuracy, told: Reported) -> float:
    """Returns by how many hits two accuracies on the same tokens differ."""
    return abs(found.accuracy - told.accuracy) / 100 * found.num_selected


def hits_allowed(num_selected: int, is_rounded: bool) -> float:
    """Returns by how many hits a faithful copy may differ.

    Sums of floats in another order, and weights or sums in half precision, turn some of the likeliest tokens over, to
    and fro alike: five standard deviations of that many coins, and a handful where tokens are few.
    """
    share = FLIPS["rounded" if is_rounded else "fp32"]
    return HANDFUL + DEVIATIONS * math.sqrt(share * num_selected)
