"""A folder and what was reported of it to a release, or to one line that says why there is none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from longmlm.data.rows import Rows
from longmlm.errors import ReleaseError
from longmlm.model.loading import load_model, read_provenance, weights_sha256
from longmlm.release.export import export
from longmlm.release.gate import accuracy_to_tell, check_trained, hits_allowed, read_evaluation, reported
from longmlm.settings.release import ReleaseCard, ReleaseConfig
from tests.support.tiny import World, accuracy_of, favour, held_out, measured_on, sign


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


def read(folder: Path, world: World, allowed: bool = False) -> dict[str, Any]:
    return read_evaluation(str(folder), {"after_sha256": weights_sha256(world.trained)}, is_long=True, allowed=allowed)


def settings(**values: Any) -> ReleaseConfig:
    return ReleaseConfig(model="run", rows="rows", output="out", **values, card=ReleaseCard(title="Tiny"))


def measured_so(evaluation: dict[str, Any], name: str, **values: object) -> dict[str, Any]:
    """Returns the measurements with those of `name` on whole rows changed."""
    measured = evaluation["measured"]
    return {**measured, name: {**measured[name], "whole": {**measured[name]["whole"], **values}}}


@pytest.mark.parametrize("allowed", [False, True])
def test_long_model_without_an_evaluation_is_refused(allowed: bool) -> None:
    with pytest.raises(ReleaseError, match="set evaluation to its folder"):
        read_evaluation(None, {"after_sha256": "sha"}, is_long=True, allowed=allowed)
    assert read_evaluation(None, {"after_sha256": "sha"}, is_long=False, allowed=allowed) == {}


def test_evaluation_of_other_weights_is_refused_whatever_is_allowed(world: World, evaluation: Path) -> None:
    other = weights_sha256(world.long)
    assert other != weights_sha256(world.trained)
    for allowed in (False, True):
        with pytest.raises(ReleaseError, match="measured on other weights"):
            read_evaluation(str(evaluation), {"after_sha256": other}, is_long=True, allowed=allowed)


def test_evaluation_on_other_rows_or_of_another_base_is_refused(evaluation: Path) -> None:
    sources = json.loads((evaluation / "evaluation.json").read_text())["sources"]
    expected = {key: sources[key] for key in ("after_sha256", "rows_sha256", "base")}
    assert read_evaluation(str(evaluation), expected, is_long=True, allowed=False)
    for key, others in (("rows_sha256", "other rows"), ("base", "another base model")):
        with pytest.raises(ReleaseError, match=f"measured on {others}"):
            read_evaluation(str(evaluation), expected | {key: "other"}, is_long=True, allowed=True)


def test_model_that_did_not_recover_is_refused_unless_that_is_allowed(copy: Path, world: World) -> None:
    found = read(copy, world)
    accuracy = found["measured"]["long_after"]["whole"]["accuracy"]
    sign(copy, measured=measured_so(found, "base_cut", accuracy=accuracy + 0.01), gains={"recovered": False})
    sha256 = weights_sha256(world.trained)
    with pytest.raises(
        ReleaseError, match=f"long_after {accuracy:.2f} % is below base_cut .* allow_unrecovered = true"
    ):
        read_evaluation(str(copy), {"after_sha256": sha256}, is_long=True, allowed=False)
    assert (
        read_evaluation(str(copy), {"after_sha256": sha256}, is_long=True, allowed=True)["gains"]["recovered"] is False
    )


def test_evaluation_that_cannot_serve_is_refused_with_the_remedy(copy: Path, world: World) -> None:
    sha256 = weights_sha256(world.trained)
    with pytest.raises(ReleaseError, match=r"run pipelines\.evaluate first"):
        read_evaluation(str(copy / "nowhere"), {"after_sha256": sha256}, is_long=True, allowed=True)
    sign(copy, measured={"base_cut": {}})
    with pytest.raises(ReleaseError, match="evaluate with long_after set"):
        read_evaluation(str(copy), {"after_sha256": sha256}, is_long=True, allowed=True)
    (copy / "evaluation.json").write_text('{"measured"')
    with pytest.raises(ReleaseError, match="is damaged"):
        read_evaluation(str(copy), {"after_sha256": sha256}, is_long=True, allowed=True)


def test_model_without_a_record_of_its_training_is_refused(world: World) -> None:
    for folder in (world.long, world.base):
        with pytest.raises(ReleaseError, match="was not trained by longmlm"):
            check_trained(read_provenance(str(folder)), str(folder))
    check_trained(read_provenance(str(world.trained)), "trained")


def test_changed_evaluation_is_refused(copy: Path, world: World) -> None:
    path = copy / "evaluation.json"
    found = json.loads(path.read_text())
    assert read(copy, world) == found
    nudged = found["measured"]["base_cut"]["whole"]["accuracy"] - 1e-9
    for changed in (
        {**found, "measured": measured_so(found, "base_cut", accuracy=nudged)},
        {**found, "curve": [{"step": 0}]},
        {key: value for key, value in found.items() if key != "sha256"},
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(ReleaseError, match=r"is not what pipelines\.evaluate of this version wrote"):
            read(copy, world, allowed=True)


def test_accuracy_of_the_folder_is_the_reported_one(world: World, evaluation: Path, rows: Rows, exported: Path) -> None:
    found, about = read(evaluation, world), read_provenance(str(world.trained))
    accuracy = found["measured"]["long_after"]["whole"]["accuracy"]
    assert accuracy_to_tell(exported, rows, found, about, settings()) == accuracy > 5
    trained = {"trained": {"accuracy": accuracy_of(world.trained, world.rows), **measured_on(world.rows)}}
    assert accuracy_to_tell(exported, rows, {}, trained, settings()) == accuracy


@pytest.mark.parametrize("difference", [-2.0, 2.0])
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_another_accuracy_than_the_reported_one_is_refused(
    world: World, rows: Rows, exported: Path, weights: str, difference: float
) -> None:
    accuracy = accuracy_of(world.trained, world.rows) + difference * (1 + 5 * (weights == "bf16"))
    trained = {"trained": {"accuracy": accuracy, **measured_on(world.rows)}}
    with pytest.raises(ReleaseError, match=rf"longmlm\.json reports {accuracy:.2f} %: \d+ hits differ, rounding expl"):
        accuracy_to_tell(exported, rows, {}, trained, settings(weights=weights))


def test_evaluation_that_was_forged_whole_does_not_pass(
    world: World, copy: Path, rows: Rows, exported: Path, tmp_path: Path
) -> None:
    found, about = read(copy, world), read_provenance(str(world.trained))
    told = found["measured"]["long_after"]["whole"]
    for values, message in (
        ({"accuracy": told["accuracy"] + 3}, r"evaluation\.json reports"),
        ({"num_selected": told["num_selected"] + 1}, "under the same masks"),
    ):
        sign(copy, measured=measured_so(found, "long_after", **values))
        with pytest.raises(ReleaseError, match=message):
            accuracy_to_tell(exported, rows, read(copy, world), about, settings())


def untrained(folder: Path, world: World) -> None:
    shutil.copy(world.long / "model.safetensors", folder)


def other_answer(folder: Path, _world: World) -> None:
    favour(folder, 11)


def no_positions(folder: Path, _world: World) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.bias"] = torch.zeros_like(weights["lm_head.bias"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("spoil", [untrained, other_answer, no_positions], ids=lambda spoil: spoil.__name__)
def test_other_weights_in_the_folder_are_found_by_their_accuracy(
    world: World, evaluation: Path, rows: Rows, exported: Path, spoil: Callable[[Path, World], None]
) -> None:
    spoil(exported, world)
    with pytest.raises(ReleaseError, match=r"the exported folder tells .* % of \d+ held-out tokens, evaluation\.json"):
        accuracy_to_tell(exported, rows, read(evaluation, world), read_provenance(str(world.trained)), settings())


def test_folder_that_rounding_brought_below_its_base_is_refused_unless_allowed(
    world: World, copy: Path, rows: Rows, exported: Path
) -> None:
    found, about = read(copy, world), read_provenance(str(world.trained))
    accuracy = found["measured"]["long_after"]["whole"]["accuracy"]
    measured = measured_so(found, "long_after", accuracy=accuracy + 0.2)
    evaluation = {**found, "measured": measured_so({"measured": measured}, "base_cut", accuracy=accuracy + 0.1)}
    with pytest.raises(ReleaseError, match=f"long_after {accuracy:.2f} % is below base_cut {accuracy + 0.1:.2f} %"):
        accuracy_to_tell(exported, rows, evaluation, about, settings())
    assert accuracy_to_tell(exported, rows, evaluation, about, settings(allow_unrecovered=True)) == accuracy


def test_report_that_cannot_be_repeated_is_refused(world: World, evaluation: Path, rows: Rows) -> None:
    about, found = measured_on(world.rows), read(evaluation, world)
    assert reported({}, {"trained": {"accuracy": 1.0, **about}}, rows)
    for changed in ({"held_out": None}, {"held_out": {"max_rows": 0}}, {"precision": None}, {"precision": "auto"}):
        with pytest.raises(ReleaseError, match="does not say how its 1.00 % were measured"):
            reported({}, {"trained": {"accuracy": 1.0, **about, **changed}}, rows)
    with pytest.raises(ReleaseError, match=r"evaluation\.json does not say how"):
        reported({key: value for key, value in found.items() if key != "held_out"}, {}, rows)
    with pytest.raises(ReleaseError, match="on other rows"):
        reported({}, {"trained": {"accuracy": 1.0, **about, "rows_sha256": "other"}}, rows)


def test_where_nothing_was_reported_nothing_is_measured(rows: Rows, tmp_path: Path) -> None:
    assert accuracy_to_tell(tmp_path / "nowhere", rows, {}, {"trained": {"accuracy": None}}, settings()) is None


def test_faithful_copy_may_differ_by_a_handful_in_fp32_and_by_chance_where_rounded() -> None:
    assert 2 <= hits_allowed(300, is_rounded=False) < 3
    assert hits_allowed(300, is_rounded=True) < 11
    assert hits_allowed(10**6, is_rounded=False) / 10**6 < 1e-4
    assert hits_allowed(10**6, is_rounded=True) / 10**6 < 6e-4
