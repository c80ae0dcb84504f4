"""The gate of a release: the evaluation must be of this model, and the exported files must reach its accuracy."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import PairAccuracy
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import Provenance, TrainingRecord, read_provenance
from longmlm.data.rows import Rows
from longmlm.errors import ArtifactError, ReleaseError
from longmlm.hubs.model_files import local_model_sha256, weights_sha256
from longmlm.model.loading import load_model
from longmlm.release.export import export
from longmlm.release.gate import (
    check_same_pairs,
    evaluation_of,
    exported_accuracy,
    most_flips,
    reported_accuracy,
)
from longmlm.release.task import check_task_recipe
from longmlm.settings.masking import HeldOut
from longmlm.settings.release import ReleaseRecipe
from tests.support.evaluations import forge, worse_on_short_texts
from tests.support.tiny import LONG_POSITIONS, World, accuracy_of, favour, held_out

FP32, ALLOWED = ReleaseRecipe(), ReleaseRecipe(allow_unrecovered=True)


@pytest.fixture
def copy(evaluation: Path, tmp_path: Path) -> Path:
    """An evaluation to change."""
    return Path(shutil.copytree(evaluation, tmp_path / "evaluation"))


@pytest.fixture
def rows(world: World) -> Rows:
    return held_out(world.rows)


@pytest.fixture
def exported(world: World, tmp_path: Path) -> Path:
    """The trained model as it is released."""
    export(load_model(str(world.trained)), "fp32", tmp_path / "exported")
    return tmp_path / "exported"


@pytest.fixture
def identity(world: World, rows: Rows) -> tuple[Provenance, str, str]:
    """What is released: its history, and the hashes of its weights and its rows."""
    return read_provenance(world.trained), weights_sha256(world.trained), rows.sha256


def of_base(identity: tuple, **changes: object) -> tuple:
    """Returns what is released with another base model."""
    provenance, *hashes = identity
    extension = replace(provenance.extension, base=replace(provenance.extension.base, **changes))
    return replace(provenance, extension=extension), *hashes


def trained(rows: Rows, accuracy: float | None, **changes: object) -> Provenance:
    """Returns what longmlm.json says about a run that measured this accuracy on these rows."""
    how = {"held_out": HeldOut(), "precision": "no", "rows_sha256": rows.sha256, **changes}
    record = TrainingRecord(row_length=LONG_POSITIONS, steps=3, tokens=1_000, accuracy=accuracy, **how)
    return Provenance(trained=record)


def read(folder: Path) -> Evaluation:
    return read_evaluation(folder / "evaluation.json")


@pytest.mark.parametrize("recipe", [FP32, ALLOWED])
def test_long_model_without_an_evaluation_is_refused(identity: tuple, recipe: ReleaseRecipe) -> None:
    with pytest.raises(ReleaseError, match="set evaluation to its folder"):
        evaluation_of(None, *identity, recipe)
    assert evaluation_of(None, Provenance(), *identity[1:], recipe) is None


@pytest.mark.parametrize("recipe", [FP32, ALLOWED])
@pytest.mark.parametrize(
    ("part", "mismatch"),
    [
        (1, "other weights"),
        (2, "other rows"),
        ("name", "a different base model"),
        ("revision", "a different revision"),
    ],
)
def test_evaluation_of_something_else_is_refused_whatever_is_allowed(
    evaluation: Path, identity: tuple, part: int | str, mismatch: str, recipe: ReleaseRecipe
) -> None:
    assert evaluation_of(str(evaluation), *identity, recipe) == read(evaluation)
    hashes = ["other" if index == part else known for index, known in enumerate(identity)]
    other = of_base(identity, **{part: "other", "sha256": None}) if isinstance(part, str) else hashes
    with pytest.raises(ReleaseError, match=rf"evaluation\.json was measured on {mismatch}"):
        evaluation_of(str(evaluation), *other, recipe)


def test_the_base_model_of_an_evaluation_is_known_by_its_content_and_by_any_path(
    evaluation: Path, identity: tuple, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.base.parent)
    sha256 = local_model_sha256(str(world.base))
    same = [{"name": "where it was once", "sha256": sha256}, {"name": f"./{world.base.name}", "sha256": None}]
    for base in same:
        assert evaluation_of(str(evaluation), *of_base(identity, **base), ALLOWED) == read(evaluation)
    others = [{"name": "where it was once", "sha256": hashed} for hashed in (None, "0" * 64)]
    for base in (*others, {"name": ".", "sha256": None}):
        with pytest.raises(ReleaseError, match="a different base model"):
            evaluation_of(str(evaluation), *of_base(identity, **base), ALLOWED)


def test_model_that_did_not_recover_is_refused_unless_that_is_allowed(copy: Path, identity: tuple) -> None:
    accuracy = read(copy).accuracy("long_after")
    forge(copy, "base_cut", accuracy=accuracy + 50)  # decides nothing
    forge(copy, "base_chunks", accuracy=accuracy + 0.01)  # which may be chance
    assert evaluation_of(str(copy), *identity, ReleaseRecipe(allow_worse_short_texts=True)).is_recovered
    forge(copy, "base_chunks", accuracy=accuracy + 50)
    with pytest.raises(ReleaseError, match=f"{accuracy:.2f} .* points below base_chunks .*allow_unrecovered"):
        evaluation_of(str(copy), *identity, FP32)
    allowed = ReleaseRecipe(allow_unrecovered=True, allow_worse_short_texts=True)
    assert evaluation_of(str(copy), *identity, allowed).is_recovered is False


def test_model_that_got_worse_on_short_texts_is_refused_unless_that_is_allowed(copy: Path, identity: tuple) -> None:
    worse_on_short_texts(copy, lost_per_row=0)
    assert not evaluation_of(str(copy), *identity, FP32).is_worse_on_short_texts
    worse_on_short_texts(copy, lost_per_row=1)
    with pytest.raises(ReleaseError, match=r"points below base_cut.*\ballow_worse_short_texts = true in \[release"):
        evaluation_of(str(copy), *identity, ALLOWED)
    allowed = ReleaseRecipe(allow_worse_short_texts=True)
    assert evaluation_of(str(copy), *identity, allowed).is_worse_on_short_texts


def test_evaluation_that_cannot_be_used_is_refused_with_the_remedy(copy: Path, identity: tuple) -> None:
    path = copy / "evaluation.json"
    with pytest.raises(ArtifactError, match="nowhere.* evaluate stage"):
        evaluation_of(str(copy / "nowhere"), *identity, ALLOWED)
    evaluation = read(copy)
    forge(copy, "long_after", accuracy=None, standard_error=None, loss=None, num_selected=0)
    with pytest.raises(ReleaseError, match="hold out more documents"):
        evaluation_of(str(copy), *identity, ALLOWED)
    untrained = {name: measured for name, measured in evaluation.measured.items() if name != "long_after"}
    artifact.write(path, replace(evaluation, measured=untrained).signed())
    with pytest.raises(ReleaseError, match="long_after"):
        evaluation_of(str(copy), *identity, ALLOWED)
    artifact.write(path, replace(evaluation, num_rows=1))
    with pytest.raises(ArtifactError, match=r"evaluation\.json was changed"):
        evaluation_of(str(copy), *identity, ALLOWED)
    path.write_text('{"measured"')
    with pytest.raises(ArtifactError, match=r"evaluation\.json is damaged"):
        evaluation_of(str(copy), *identity, ALLOWED)


def test_accuracy_of_the_folder_is_the_reported_one(world: World, evaluation: Path, rows: Rows, exported: Path) -> None:
    found, provenance = read(evaluation), read_provenance(world.trained)
    accuracy = found.accuracy("long_after")
    assert exported_accuracy(exported, rows, found, provenance, FP32) == accuracy > 5
    of_run = trained(rows, accuracy_of(world.trained, world.rows))
    assert exported_accuracy(exported, rows, None, of_run, FP32) == accuracy


@pytest.mark.parametrize(("weights", "difference"), [("fp32", -2.0), ("fp32", 2.0), ("bf16", 12.0)])
def test_another_accuracy_than_the_reported_one_is_refused(
    world: World, rows: Rows, exported: Path, weights: str, difference: float
) -> None:
    accuracy = accuracy_of(world.trained, world.rows) + difference
    with pytest.raises(ReleaseError, match=rf"longmlm\.json reports {accuracy:.2f} %: \d+ predictions differ"):
        exported_accuracy(exported, rows, None, trained(rows, accuracy), ReleaseRecipe(weights=weights))


def test_evaluation_that_was_forged_and_signed_does_not_pass(
    world: World, copy: Path, rows: Rows, exported: Path
) -> None:
    provenance, after = read_provenance(world.trained), read(copy).measured["long_after"].whole
    for values, message in (
        ({"accuracy": after.accuracy + 3}, r"evaluation\.json reports"),
        ({"num_selected": after.num_selected + 1, "accuracy": after.accuracy}, "under the same masks"),
    ):
        forged = forge(copy, "long_after", **values)
        with pytest.raises(ReleaseError, match=message):
            exported_accuracy(exported, rows, forged, provenance, FP32)


def untrained(folder: Path, world: World) -> None:
    shutil.copy(world.long / "model.safetensors", folder)


def other_answer(folder: Path, _world: World) -> None:
    favour(folder, 11)


@pytest.mark.parametrize("spoil", [untrained, other_answer], ids=lambda spoil: spoil.__name__)
def test_other_weights_in_the_folder_are_detected_by_their_accuracy(
    world: World, evaluation: Path, rows: Rows, exported: Path, spoil: Callable[[Path, World], None]
) -> None:
    spoil(exported, world)
    with pytest.raises(ReleaseError, match=r"held-out tokens, evaluation\.json reports"):
        exported_accuracy(exported, rows, read(evaluation), read_provenance(world.trained), FP32)


def test_folder_that_rounding_brought_below_its_base_is_refused_unless_allowed(
    world: World, copy: Path, rows: Rows, exported: Path
) -> None:
    found, provenance = read(copy), read_provenance(world.trained)
    accuracy, allowed = found.accuracy("long_after"), 2 * found.recovery.standard_error
    forge(copy, "long_after", accuracy=accuracy + 0.2)
    base = accuracy + allowed + 0.1
    forged = forge(copy, "base_chunks", accuracy=base)
    assert forged.is_recovered
    with pytest.raises(ReleaseError, match=f"{accuracy:.2f} % is .* below base_chunks {base:.2f} %: train longer"):
        exported_accuracy(exported, rows, forged, provenance, FP32)
    assert exported_accuracy(exported, rows, forged, provenance, ALLOWED) == accuracy


def test_report_on_other_rows_is_refused(rows: Rows) -> None:
    assert reported_accuracy(None, trained(rows, 1.0), rows)
    with pytest.raises(ReleaseError, match="on other rows"):
        reported_accuracy(None, trained(rows, 1.0, rows_sha256="other"), rows)


def test_where_nothing_was_reported_nothing_is_measured(rows: Rows, tmp_path: Path) -> None:
    assert exported_accuracy(tmp_path / "nowhere", rows, None, trained(rows, None), FP32) is None


def test_faithful_copy_may_differ_by_a_few_predictions_in_fp32_and_by_chance_where_rounded() -> None:
    assert 2 <= most_flips(300, is_rounded=False) < 3
    assert most_flips(300, is_rounded=True) < 11
    assert most_flips(10**6, is_rounded=False) / 10**6 < 1e-4
    assert most_flips(10**6, is_rounded=True) / 10**6 < 6e-4


@pytest.mark.parametrize(
    "recipe", [{"onnx": True}, {"sentence_transformer": "mean"}, {"allow_unrecovered": True}, {"num_positions": 64}]
)
def test_a_setting_of_language_models_is_refused_for_a_fine_tuned_one(recipe: dict) -> None:
    check_task_recipe(ReleaseRecipe(weights="bf16", max_shard_size="1GB"))
    with pytest.raises(ReleaseError, match=rf"recipe.{next(iter(recipe))} is for masked language models: remove it"):
        check_task_recipe(ReleaseRecipe(**recipe))


def test_the_accuracy_on_pairs_must_be_that_of_the_exported_files_up_to_rounding() -> None:
    reported = PairAccuracy(60.0, 1.5, 0.67, 1000, 51.0)
    check_same_pairs(replace(reported, accuracy=60.2), reported, is_rounded=False)
    for other in (replace(reported, accuracy=58.0), replace(reported, num_pairs=999), None):
        with pytest.raises(ReleaseError, match=r"60\.00 ± 1\.50 % on 1,000 pairs .* was reported: export again"):
            check_same_pairs(other, reported, is_rounded=False)
