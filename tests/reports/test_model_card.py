"""What was measured to a card: metadata that hubs read, real numbers, and what must not be kept back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from longmlm.data.rows import open_rows
from longmlm.errors import ReleaseError
from longmlm.model.loading import read_provenance, weights_sha256
from longmlm.release.gate import read_evaluation
from longmlm.reports.facts import Licence, Training, licence_of, training_of
from longmlm.reports.model_card import NOT_RECOVERED, model_card, public_provenance
from longmlm.settings.release import ReleaseCard, ReleaseConfig
from tests.support.tiny import LONG_POSITIONS, World

CONFIG = ReleaseConfig(
    model="run",
    rows="rows",
    output="out/tiny-40",
    card=ReleaseCard(
        title="Tiny: a model, 40 long",
        license="apache-2.0",
        description="A model of *nobody*.",
        languages=("en", "zh"),
        data=("demo novels, public domain",),
    ),
)


@pytest.fixture
def provenance(world: World) -> dict[str, Any]:
    return read_provenance(str(world.trained))


@pytest.fixture
def rows(world: World) -> dict[str, Any]:
    return open_rows(world.rows, "held_out").manifest


@pytest.fixture
def measured(world: World, evaluation: Path) -> dict[str, Any]:
    return read_evaluation(
        str(evaluation), {"after_sha256": weights_sha256(world.trained)}, is_long=True, allowed=False
    )


def card(provenance: dict, measured: dict, rows: dict, **told: object) -> str:
    """Returns the card of the model under CONFIG, changed as told."""
    training, licence = told.pop("training", Training()), told.pop("licence", Licence("apache-2.0"))
    return model_card(replace(CONFIG, **told), provenance, measured, rows, training, licence)


def test_metadata_is_what_hubs_read(provenance: dict, measured: dict, rows: dict) -> None:
    data = ModelCard(card(provenance, measured, rows)).data
    assert data.license == "apache-2.0"
    assert data.pipeline_tag == "fill-mask"
    assert data.library_name == "transformers"
    assert data.language == ["en", "zh"]
    assert data.tags == ["masked-lm", "long-context"]
    assert data.model_name == CONFIG.title
    (result,) = data.eval_results
    accuracy = measured["measured"]["long_after"]["whole"]["accuracy"]
    assert accuracy > 1
    assert result.metric_value == round(accuracy, 2)
    assert (result.task_type, result.metric_type) == ("fill-mask", "accuracy")
    assert "model-index" in data.to_dict()


def test_base_model_is_named_where_it_is_on_a_hub_and_not_where_it_is_a_folder(
    provenance: dict, measured: dict, rows: dict
) -> None:
    here = ModelCard(card(provenance, measured, rows))
    there = ModelCard(card(provenance | {"base": "somebody/roberta", "base_revision": "c0ffee"}, measured, rows))
    assert here.data.base_model is None
    assert there.data.base_model == "somebody/roberta"


def test_numbers_are_the_measured_ones(provenance: dict, measured: dict, rows: dict) -> None:
    text = ModelCard(card(provenance, measured, rows)).text
    for name in ("base_cut", "base_windows", "long_before", "long_after"):
        told = measured["measured"][name]["whole"]
        assert f"{told['accuracy']:.2f} ± {told['standard_error']:.2f}" in text
        assert f"| {name} " in text
    assert f"stretched to {LONG_POSITIONS}" in text
    assert "3 steps, 1,000 tokens" in text
    assert f"{rows['report']['train']['documents']:,} | {rows['report']['held_out']['documents']:,} |" in text
    assert "hierarchical, alpha 0.4" in text
    assert "- demo novels, public domain" in text
    assert CONFIG.title in text
    assert CONFIG.description in text
    assert 'model="tiny-40"' in text


def test_card_says_so_where_the_accuracy_was_not_won_back(provenance: dict, measured: dict, rows: dict) -> None:
    lost = measured | {"gains": measured["gains"] | {"recovered": False}}
    assert NOT_RECOVERED in card(provenance, lost, rows)
    assert NOT_RECOVERED not in card(provenance, measured, rows)


def test_card_shows_pictures_that_there_are(provenance: dict, measured: dict, rows: dict) -> None:
    without, with_curve = (card(provenance, measured | {"curve": curve}, rows) for curve in ([], [{"step": 0}]))
    assert "(blocks.png)" in without
    assert "recovery.png" not in without
    assert "(recovery.png)" in with_curve


def test_accuracy_is_that_of_the_files_themselves_where_they_were_measured(
    provenance: dict, measured: dict, rows: dict
) -> None:
    base_cut = measured["measured"]["base_cut"]["whole"]["accuracy"]
    for accuracy, is_lost in ((base_cut + 0.014, False), (base_cut - 0.014, True)):
        trained = {**provenance["trained"], "exported_accuracy": accuracy}
        found = ModelCard(card(provenance | {"trained": trained}, measured, rows))
        assert found.data.eval_results[0].metric_value == round(accuracy, 2)
        assert f"These files, loaded again, tell {accuracy:.2f} % of" in found.text
        assert (NOT_RECOVERED in found.text) == is_lost


def test_card_says_so_where_the_base_model_was_not_measured(provenance: dict, rows: dict) -> None:
    unknown = "What its base model tells was not measured"
    assert unknown in card(provenance, {}, rows)
    assert unknown not in card(provenance, {}, rows, training=Training(base_cut=1.0))
    assert unknown not in card({"trained": provenance["trained"]}, {}, rows)


def test_model_from_scratch_needs_no_base(rows: dict) -> None:
    trained = {"row_length": 128, "steps": 500, "tokens": 1_234_567, "accuracy": 31.25}
    found = ModelCard(card({"trained": trained}, {}, rows, data=()))
    assert found.data.base_model is None
    assert found.data.tags == ["masked-lm"]
    assert found.data.eval_results[0].metric_value == 31.25
    assert "from scratch" in found.text
    assert "500 steps, 1,234,567 tokens" in found.text
    assert "31.25 %" in found.text


def test_folders_of_the_maker_are_not_told(provenance: dict, world: World) -> None:
    told = public_provenance(provenance | {"started_from": str(world.long)})
    assert str(world.base.parent) not in json.dumps(told)
    assert (told["base"], told["started_from"]) == ("base", "long")
    hub = {"base": "somebody/roberta", "base_revision": "c0ffee"}
    assert public_provenance(hub) == hub
    gone = public_provenance({"base": "/maker/secret/roberta", "base_revision": None})
    assert gone["base"] == "roberta"


def test_lengths_at_which_nothing_was_measured_are_named(provenance: dict, measured: dict, rows: dict) -> None:
    trained = {**provenance, "mode": "generated"}
    at = {number: card(trained | {"num_positions": number}, measured, rows) for number in (20, 40, 99)}
    assert "nothing was measured" not in at[40]
    assert "at other lengths nothing was measured" in at[20] and "no text has passed" not in at[20]
    assert "no text has passed them" in at[99]


def test_licence_is_that_of_the_base_model_unless_another_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: openrail\nlicense_link: LICENSE\n---\n")
    here = {"base": str(tmp_path), "base_revision": None}
    assert licence_of("mit", here) == Licence("mit")
    assert licence_of(None, here) == Licence("other", "openrail", "LICENSE", is_of_base=True)


@pytest.mark.parametrize("card", [None, "# no metadata", "---\nlicense: [a, b\n---\n"])
@pytest.mark.parametrize("key", ["base", "started_from"])
def test_unknown_licence_is_refused_with_the_remedy(tmp_path: Path, card: str | None, key: str) -> None:
    if card:
        (tmp_path / "README.md").write_text(card)
    with pytest.raises(ReleaseError, match=r"the base model .* is not known: set license, such as license = "):
        licence_of(None, {key: str(tmp_path), f"{key}_revision": None})
    with pytest.raises(ReleaseError, match=r"there is no base model to take it from: set license"):
        licence_of(None, {"trained": {}})


def test_licence_of_the_base_model_stands_in_metadata_and_text(provenance: dict, measured: dict, rows: dict) -> None:
    told = ModelCard(card(provenance, measured, rows, licence=Licence("other", "openrail", "LICENSE", is_of_base=True)))
    assert (told.data.license, told.data["license_name"], told.data["license_link"]) == ("other", "openrail", "LICENSE")
    assert "## Licence\n\nopenrail, as its base model base" in told.text


def test_sources_are_told_where_no_line_of_data_is(provenance: dict, measured: dict, rows: dict) -> None:
    sources = [
        {"dataset": "owner/novels", "split": "train", "commit": "c0ffee"},
        {"dataset": "/maker/secret/saved", "split": "train"},
        {"files": [{"path": f"/maker/secret/{number}.txt"} for number in range(5)]},
    ]
    told = ModelCard(card(provenance, measured, {**rows, "plan": {**rows["plan"], "sources": sources}}, data=()))
    assert told.data.datasets == ["owner/novels"]
    assert "- owner/novels, train, commit c0ffee (licence not told)" in told.text
    assert "- saved, train (licence not told)" in told.text
    assert "- 0.txt, 1.txt, 2.txt and 2 more files (licence not told)" in told.text
    assert "secret" not in told.text
    assert "- text.jsonl (licence not told)" in card(provenance, measured, rows, data=())


def test_training_is_told_as_far_as_it_is_known(provenance: dict, measured: dict, rows: dict, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"state": {"training_seconds": 9000.0, "base_cut": 55.0}}')
    (tmp_path / "settings.toml").write_text("[recipe]\nseed = 7\n[recipe.masking]\nselected_fraction = 0.2\n")
    training = training_of(tmp_path)
    assert training == Training({"seed": 7, "masking.selected_fraction": 0.2}, 9000.0, 55.0)
    told = card(provenance, measured, rows, training=training, hardware="one H200")
    assert "Trained for 2.5 hours on one H200." in told
    assert "| masking.selected_fraction | 0.2 |" in told
    assert "## Training" not in card(provenance, measured, rows, training=training_of(tmp_path / "nowhere"))


def test_checkpoint_below_its_base_is_told_to_be_so(provenance: dict, rows: dict) -> None:
    for base_cut, is_short in ((12.0, False), (13.0, True), (None, False)):
        told = card(provenance, {}, rows, training=Training(base_cut=base_cut))
        assert "12.50 % of the selected tokens" in told
        assert (NOT_RECOVERED in told) == is_short


@pytest.mark.parametrize(("precision", "told"), [("no", "fp32 (auto)"), ("bf16", "bf16 (auto)"), (None, "auto")])
def test_precision_is_what_auto_came_to(tmp_path: Path, precision: str | None, told: str) -> None:
    (tmp_path / "settings.toml").write_text('[recipe]\nprecision = "auto"\n')
    trained = {"precision": precision} if precision else {}
    (tmp_path / "longmlm.json").write_text(json.dumps({"trained": trained}))
    assert training_of(tmp_path).recipe == {"precision": told}
    (tmp_path / "settings.toml").write_text('[recipe]\nprecision = "bf16"\n')
    assert training_of(tmp_path).recipe == {"precision": "bf16"}
