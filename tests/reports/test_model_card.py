"""The model card: metadata that hubs read, the measured numbers, and what must not be withheld."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.data.rows import open_rows
from longmlm.errors import ReleaseError
from longmlm.model.loading import read_provenance
from longmlm.reports.facts import Licence, Training, licence_of, training_of
from longmlm.reports.model_card import NOT_RECOVERED, CardFacts, addressed, model_card, public_provenance
from longmlm.settings.held_out import HeldOut
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.release import ReleaseCard
from tests.support.tiny import LONG_POSITIONS, World

CARD = ReleaseCard(
    title="Tiny: a model, 40 long",
    license="apache-2.0",
    description="A model of *nobody*.",
    languages=("en", "zh"),
    data=("demo novels, public domain",),
)
RECIPE = PretrainRecipe(
    num_steps=5, batch_tokens=100, learning_rate=1e-4, seed=7, masking=Masking(selected_fraction=0.2)
)


@pytest.fixture
def provenance(world: World) -> dict[str, Any]:
    return read_provenance(str(world.trained))


@pytest.fixture
def rows(world: World) -> dict[str, Any]:
    return open_rows(world.rows, "held_out").manifest


@pytest.fixture
def measured(evaluation_folder: Path) -> Evaluation:
    return read_evaluation(evaluation_folder / "evaluation.json")


def render(
    provenance: dict, evaluation: Evaluation | None, rows: dict, author: ReleaseCard = CARD, **facts: Any
) -> str:
    """Returns the card of the model, with other facts than usual."""
    facts = {"training": Training(), "licence": Licence("apache-2.0")} | facts
    return model_card(
        author, CardFacts(name="tiny-40", provenance=provenance, evaluation=evaluation, rows=rows, **facts)
    )


def write_state(folder: Path, precision: str = "bf16", trained_precision: str | None = None) -> None:
    """Writes what training_of reads of a checkpoint, as the version without formats wrote it."""
    recipe = {key: value for key, value in asdict(replace(RECIPE, precision=precision)).items() if key != "held_out"}
    depends_on = {"recipe": recipe, "held_out": asdict(HeldOut()), "rows": {"sha256": "0" * 64}, "start": {}}
    state = {"step": 5, "training_seconds": 9000.0, "base_cut": 55.0}
    (folder / "state.json").write_text(json.dumps({"state": state, "depends_on": depends_on}))
    trained = {"row_length": 40, "steps": 5, "tokens": 10, "precision": trained_precision}
    (folder / "longmlm.json").write_text(json.dumps({"trained": trained}))


def test_metadata_is_what_hubs_read(provenance: dict, measured: Evaluation, rows: dict) -> None:
    data = ModelCard(render(provenance, measured, rows)).data
    assert data.license == "apache-2.0"
    assert data.pipeline_tag == "fill-mask"
    assert data.library_name == "transformers"
    assert data.language == ["en", "zh"]
    assert data.tags == ["masked-lm", "long-context"]
    assert data.model_name == CARD.title
    (result,) = data.eval_results
    accuracy = measured.accuracy("long_after")
    assert accuracy > 1
    assert result.metric_value == round(accuracy, 2)
    assert (result.task_type, result.metric_type) == ("fill-mask", "accuracy")
    assert "model-index" in data.to_dict()


def test_base_model_is_named_if_it_is_on_a_hub_and_not_if_it_is_a_folder(
    provenance: dict, measured: Evaluation, rows: dict
) -> None:
    hub = provenance | {"base": "somebody/roberta", "base_revision": "c0ffee"}
    assert ModelCard(render(provenance, measured, rows)).data.base_model is None
    assert ModelCard(render(hub, measured, rows)).data.base_model == "somebody/roberta"


def test_numbers_are_the_measured_ones(provenance: dict, measured: Evaluation, rows: dict) -> None:
    text = ModelCard(render(provenance, measured, rows)).text
    for name in ("base_cut", "base_windows", "long_before", "long_after"):
        whole = measured.measured[name].whole
        assert f"{whole.accuracy:.2f} ± {whole.standard_error:.2f}" in text
        assert f"| {name} " in text
    assert f"extended to {LONG_POSITIONS}" in text
    assert "3 steps, 1,000 tokens" in text
    assert f"{rows['report']['train']['documents']:,} | {rows['report']['held_out']['documents']:,} |" in text
    assert "hierarchical, alpha 0.4" in text
    assert "- demo novels, public domain" in text
    assert CARD.title in text
    assert CARD.description in text
    assert 'model="tiny-40"' in text


def test_card_is_well_formed_markdown_whatever_it_contains(provenance: dict, measured: Evaluation, rows: dict) -> None:
    everything = {"training": Training({"seed": "7"}, 9000.0, 1.0), "has_onnx": True}
    short = {"trained": {**provenance["trained"], "accuracy": None}}
    for text in (
        render(provenance, measured, rows, **everything),
        render(provenance, None, rows),
        render(short, None, rows, replace(CARD, description="", data=())),
    ):
        body = text.split("---\n", 2)[2]
        assert "\n\n\n" not in body
        headings = re.findall(r"(.*)\n(#+ .*)\n(.*)", body)
        assert len(headings) >= 5
        assert all((before, after) == ("", "") for before, _, after in headings)
        assert not re.search(r"\bNone\b(?!\))|&amp;|&#|{{|{%", text)


def test_card_says_so_if_the_accuracy_was_not_recovered(provenance: dict, measured: Evaluation, rows: dict) -> None:
    base_cut = measured.measured["base_cut"]
    better = replace(base_cut, whole=replace(base_cut.whole, accuracy=99.0))
    lost = replace(measured, measured=measured.measured | {"base_cut": better})
    assert NOT_RECOVERED in render(provenance, lost, rows)
    assert NOT_RECOVERED not in render(provenance, measured, rows)


def test_card_shows_the_pictures_that_exist(provenance: dict, measured: Evaluation, rows: dict) -> None:
    whole = Accuracy(1.0, 0.5, 3.0, 10)
    line = EvaluationMetrics(step=0, tokens=0, held_out=Measured(whole, (whole,)))
    without, with_curve = (render(provenance, replace(measured, curve=curve), rows) for curve in ((), (line,)))
    assert "(blocks.png)" in without
    assert "recovery.png" not in without
    assert "(recovery.png)" in with_curve


def test_accuracy_is_that_of_the_files_themselves_if_they_were_measured(
    provenance: dict, measured: Evaluation, rows: dict
) -> None:
    base_cut = measured.accuracy("base_cut")
    for accuracy, is_lost in ((base_cut + 0.014, False), (base_cut - 0.014, True)):
        trained = {**provenance["trained"], "exported_accuracy": accuracy}
        card = ModelCard(render(provenance | {"trained": trained}, measured, rows))
        assert card.data.eval_results[0].metric_value == round(accuracy, 2)
        assert re.search(rf"loaded again.* {accuracy:.2f} %", card.text)
        assert (NOT_RECOVERED in card.text) == is_lost


def test_card_says_so_if_the_base_model_was_not_measured(provenance: dict, rows: dict) -> None:
    unknown = "base model was not measured"
    assert unknown in render(provenance, None, rows)
    assert unknown not in render(provenance, None, rows, training=Training(base_cut=1.0))
    assert unknown not in render({"trained": provenance["trained"]}, None, rows)


def test_model_from_scratch_needs_no_base(rows: dict) -> None:
    trained = {"row_length": 128, "steps": 500, "tokens": 1_234_567, "accuracy": 31.25}
    card = ModelCard(render({"trained": trained}, None, rows, replace(CARD, data=())))
    assert card.data.base_model is None
    assert card.data.tags == ["masked-lm"]
    assert card.data.eval_results[0].metric_value == 31.25
    assert "from scratch" in card.text
    assert "500 steps, 1,234,567 tokens" in card.text
    assert "31.25 %" in card.text


def test_local_paths_are_not_published(provenance: dict, world: World) -> None:
    public = public_provenance(provenance | {"started_from": str(world.long)})
    assert str(world.base.parent) not in json.dumps(public)
    assert (public["base"], public["started_from"]) == ("base", "long")
    hub = {"base": "somebody/roberta", "base_revision": "c0ffee"}
    assert public_provenance(hub) == hub
    assert public_provenance({"base": "/maker/secret/roberta", "base_revision": None})["base"] == "roberta"


def test_lengths_at_which_nothing_was_measured_are_named(provenance: dict, measured: Evaluation, rows: dict) -> None:
    trained = {**provenance, "mode": "generated"}
    cards = {number: render(trained | {"num_positions": number}, measured, rows) for number in (20, 40, 99)}
    assert "nothing was measured" not in cards[40]
    assert "at other lengths nothing was measured" in cards[20]
    assert "never trained" not in cards[20]
    assert "never trained" in cards[99]


def test_licence_is_that_of_the_base_model_unless_another_is_given(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: openrail\nlicense_link: LICENSE\n---\n")
    local = {"base": str(tmp_path), "base_revision": None}
    assert licence_of("mit", local) == Licence("mit")
    assert licence_of(None, local) == Licence("other", "openrail", "LICENSE", is_of_base=True)


@pytest.mark.parametrize("card", [None, "# no metadata", "---\nlicense: [a, b\n---\n"])
@pytest.mark.parametrize("key", ["base", "started_from"])
def test_unknown_licence_is_refused_with_the_remedy(tmp_path: Path, card: str | None, key: str) -> None:
    if card:
        (tmp_path / "README.md").write_text(card)
    with pytest.raises(ReleaseError, match=rf"{tmp_path}.*card\.license"):
        licence_of(None, {key: str(tmp_path), f"{key}_revision": None})
    with pytest.raises(ReleaseError, match=r"no base model.*card\.license"):
        licence_of(None, {"trained": {}})


def test_licence_of_the_base_model_is_in_metadata_and_text(provenance: dict, measured: Evaluation, rows: dict) -> None:
    licence = Licence("other", "openrail", "LICENSE", is_of_base=True)
    card = ModelCard(render(provenance, measured, rows, licence=licence))
    assert (card.data.license, card.data["license_name"], card.data["license_link"]) == ("other", "openrail", "LICENSE")
    assert re.search("## Licence\n\nopenrail.* base$", card.text.rstrip())


def test_sources_are_listed_if_the_author_describes_no_data(provenance: dict, measured: Evaluation, rows: dict) -> None:
    sources = [
        {"dataset": "owner/novels", "split": "train", "commit": "c0ffee"},
        {"dataset": "/maker/secret/saved", "split": "train"},
        {"files": [{"path": f"/maker/secret/{number}.txt"} for number in range(5)]},
    ]
    author = replace(CARD, data=())
    manifest = {**rows, "plan": {**rows["plan"], "sources": sources}}
    card = ModelCard(render(provenance, measured, manifest, author))
    assert card.data.datasets == ["owner/novels"]
    assert "- owner/novels, train, commit c0ffee (" in card.text
    assert "- saved, train (" in card.text
    assert "- 0.txt, 1.txt, 2.txt and 2 more files (" in card.text
    assert "secret" not in card.text
    assert "- text.jsonl (" in render(provenance, measured, rows, author)


def test_training_is_described_as_far_as_it_is_known(
    provenance: dict, measured: Evaluation, rows: dict, tmp_path: Path
) -> None:
    write_state(tmp_path)
    training = training_of(tmp_path)
    assert (training.seconds, training.base_cut) == (9000.0, 55.0)
    assert (training.settings["seed"], training.settings["masking.selected_fraction"]) == ("7", "0.2")
    assert not [name for name in training.settings if "held_out" in name or "dropout" in name]
    text = render(provenance, measured, rows, replace(CARD, hardware="one H200"), training=training)
    assert "Trained for 2.5 hours on one H200." in text
    assert "| masking.selected_fraction | 0.2 |" in text
    assert training_of(tmp_path / "nowhere") == Training()
    assert "## Training" not in render(provenance, measured, rows)


def test_checkpoint_below_its_base_model_is_marked(provenance: dict, rows: dict) -> None:
    for base_cut, is_below in ((12.0, False), (13.0, True), (None, False)):
        text = render(provenance, None, rows, training=Training(base_cut=base_cut))
        assert "12.50 %" in text
        assert (NOT_RECOVERED in text) == is_below


@pytest.mark.parametrize(("trained", "shown"), [("no", "fp32 (auto)"), ("bf16", "bf16 (auto)"), (None, "auto")])
def test_precision_is_what_auto_stood_for(tmp_path: Path, trained: str | None, shown: str) -> None:
    write_state(tmp_path, "auto", trained)
    assert training_of(tmp_path).settings["precision"] == shown
    write_state(tmp_path, "bf16", trained)
    assert training_of(tmp_path).settings["precision"] == "bf16"


@pytest.mark.parametrize("has_onnx", [False, True])
def test_address_changes_the_code_and_nothing_else(
    provenance: dict, measured: Evaluation, rows: dict, has_onnx: bool
) -> None:
    card = render(provenance, measured, rows, has_onnx=has_onnx)
    hub, modelscope = addressed(card, "hf", "owner/name", "v1"), addressed(card, "ms", "owner/name")
    assert hub.count('"owner/name", revision="v1"') == 1 + 2 * has_onnx
    assert modelscope.count('download_repo("owner/name", "model")') == 1 + has_onnx
    assert addressed(addressed(card, "hf", "owner/name", "v1"), "", "tiny-40") == card
    for text in (hub, modelscope):
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(code, "card", "exec")
