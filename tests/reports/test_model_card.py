"""The model card: metadata that hubs read, the measured numbers, and what must not be withheld."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from longmlm.artifacts.accuracy import Accuracy
from longmlm.artifacts.provenance import ModelSource, Provenance, TrainingRecord
from longmlm.artifacts.rows import SourceFile, SourceRecord
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address
from longmlm.reports.model_card import CardFacts, Training, model_card
from longmlm.settings.release import ReleaseCard
from tests.support.evaluations import FULL, measured
from tests.support.rows import of_sources, rows_manifest
from tests.support.tiny import LONG_POSITIONS, tiny_extension

SNAPSHOT = Path(__file__).with_name("model_card.md")  # written anew by python -m tests.reports.test_model_card
CARD = ReleaseCard(
    title="Tiny: a model, 40 long",
    license="apache-2.0",
    description="A model of *nobody*.",
    languages=("en", "zh"),
    data=("demo novels, public domain",),
    hardware="one H200",
)
TRAINED = TrainingRecord(row_length=LONG_POSITIONS, steps=3, tokens=1_000, accuracy=12.5)
EXTENSION = tiny_extension("/maker/secret/base")
EXTENDED = Provenance(extension=EXTENSION, trained=TRAINED)
BARE = {"evaluation": None, "provenance": Provenance(trained=TRAINED)}


def render(author: ReleaseCard = CARD, **changes: Any) -> str:
    """Returns the card of a model, with other facts than usual."""
    usual = {"address": Address("tiny-40"), "provenance": EXTENDED, "evaluation": FULL, "rows": rows_manifest(40)}
    about = {"training": Training(), "licence": Licence("apache-2.0"), "num_positions": LONG_POSITIONS}
    return model_card(author, CardFacts(**{**usual, **about, **changes}))


def whole_card() -> str:
    """Returns a card with every part."""
    training = Training({"seed": "7", "masking.selected_fraction": "0.2"}, 9000.0)
    parts = {"carried": ("pooler", "NSP head"), "modules": ("Pooling", "Normalize"), "has_onnx": True}
    hub = replace(EXTENSION, base=ModelSource(name="somebody/roberta", revision="c0ffee"))
    provenance = replace(EXTENDED, extension=hub, trained_before=(replace(TRAINED, steps=70, tokens=9_000),))
    return render(address=Address("owner/tiny", "hf", "v1"), provenance=provenance, training=training, **parts)


def test_card_is_the_committed_one() -> None:
    assert whole_card() == SNAPSHOT.read_text(encoding="utf-8")


def test_metadata_is_what_hubs_read() -> None:
    data = ModelCard(whole_card()).data
    assert (data.license, data.pipeline_tag, data.library_name) == ("apache-2.0", "fill-mask", "transformers")
    assert (data.language, data.model_name) == (["en", "zh"], CARD.title)
    assert data.tags == ["masked-lm", "long-context", "sentence-transformers"]
    assert data.base_model == "somebody/roberta"
    [result] = data.eval_results
    assert (result.task_type, result.metric_type, result.metric_value) == ("fill-mask", "accuracy", 31.5)
    assert "model-index" in data.to_dict()
    assert ModelCard(render()).data.base_model is None, "a folder is not on a hub"


@pytest.mark.parametrize(
    ("address", "base"),
    [
        (Address("tiny"), None),
        (Address("owner/tiny", "hf"), None),
        (Address("owner/tiny", "ms"), "maker/base"),
    ],
)
def test_a_base_model_on_modelscope_is_named_with_its_address(address: Address, base: str | None) -> None:
    """On the Hugging Face Hub, maker/base would be another model."""
    extension = replace(EXTENSION, base=ModelSource(name="ms:maker/base", revision="c0ffee"))
    card = render(address=address, provenance=replace(EXTENDED, extension=extension))
    assert "[maker/base](https://modelscope.cn/models/maker/base) on ModelScope (revision c0ffee), extended" in card
    assert ModelCard(card).data.base_model == base


@pytest.mark.parametrize(
    "changes",
    [
        {"training": Training({"seed": "7"}, 9000.0), "has_onnx": True, "modules": ("Pooling",)},
        {"num_global_tokens": 2},
        {"licence": Licence()},
        BARE,
        {"author": replace(CARD, description="", data=(), hardware=""), **BARE},
        {"provenance": Provenance(trained=replace(TRAINED, accuracy=None)), "evaluation": None},
    ],
)
@pytest.mark.parametrize("hub", ["hf", "ms", "storage"])
def test_card_is_well_formed_markdown_whatever_it_contains(hub: Any, changes: dict[str, Any]) -> None:
    text = render(**changes, address=Address("owner/tiny", hub))
    body = text.split("---\n", 2)[2]
    assert "\n\n\n" not in body
    headings = re.findall(r"(.*)\n(#+ .*)\n(.*)", body)
    assert len(headings) >= 5
    assert all((before, after) == ("", "") for before, _, after in headings)
    assert not re.search(r"\bNone\b(?!\))|&amp;|&#|{{|{%|secret", text)
    codes = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    for code in codes:
        compile(code, "card", "exec")
        assert ('download_repo("owner/tiny", "model")' in code) == (hub == "ms")
        assert '"owner/tiny"' in code
    assert len(codes) == 1 + bool(changes.get("has_onnx")) + bool(changes.get("modules"))


@pytest.mark.parametrize(
    ("base_chunks", "exported", "expected"),
    [
        (40.0, None, r"^\*\*Not recovered: .* 8\.50 ± 0\.71 points below .*\.\*\*$"),
        (1.0, None, r"^Recovered, and better than reading in chunks: .* 30\.50 ± 0\.71 points above "),
        (30.0, 29.9, r"^Recovered: .* 0\.10 ± 0\.71 points below .* chunks of 16 tokens, which may be chance\. That"),
        (30.0, 30.2, r"^Recovered: .* 0\.20 ± 0\.71 points above .* chunks of 16 tokens, which may be chance\. That"),
        (30.0, 28.5, r"^\*\*Not recovered: .* 1\.50 ± 0\.71 points below .*\*\*$"),
    ],
)
def test_the_card_says_whether_the_files_recovered_with_the_error(base_chunks, exported, expected) -> None:
    evaluation = replace(FULL, measured={**FULL.measured, "base_chunks": measured(base_chunks)})
    card = render(evaluation=evaluation, provenance=EXTENDED.exported(exported) if exported else EXTENDED)
    assert re.search(expected, card, re.MULTILINE)
    assert f"{exported or 31.5:.2f} %" in card or exported is None
    assert ModelCard(card).data.eval_results[0].metric_value == (exported or 31.5)


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        (28.0, r"^\*\*Recovered, .* Worse on short texts: .* 2\.00 ± 0\.71 points below .*\*\*$"),
        (29.0, r"^Recovered.* worse on short texts: .* 1\.00 ± 0\.71 points below .*, which may be chance\.$"),
        (32.0, r"^Recovered.* Better on short texts: .* 2\.00 ± 0\.71 points above "),
    ],
)
def test_the_card_says_what_became_of_short_texts(short: float, expected: str) -> None:
    card = render(evaluation=replace(FULL, measured={**FULL.measured, "long_after_cut": measured(short, 1)}))
    assert re.search(expected, card, re.MULTILINE)


def test_card_shows_the_pictures_that_exist() -> None:
    assert "(blocks.png)" in render() and "(recovery.png)" in render()
    assert "recovery.png" not in render(evaluation=replace(FULL, curve=()))
    assert ".png" not in render(**BARE)


def test_what_the_model_was_made_from_is_named_without_its_path() -> None:
    start = ModelSource(name="/maker/secret/start")
    assert "`base`, extended from 16 trained positions to 40" in render()
    assert "`start`, pretrained further" in render(provenance=Provenance(trained=TRAINED, started_from=start))
    scratch = ModelCard(render(**BARE))
    assert "from scratch" in scratch.text and scratch.data.base_model is None and scratch.data.tags == ["masked-lm"]
    assert "kexue.fm" in render(), "the method is cited where it was used"
    tiled = replace(EXTENDED, extension=replace(EXTENSION, initialisation="tile", alpha=0.0))
    assert "kexue.fm" not in render(provenance=tiled)


@pytest.mark.parametrize(
    ("number", "measured_there", "trained_there"), [(20, False, True), (40, True, True), (99, False, False)]
)
def test_lengths_at_which_nothing_was_measured_are_named(
    number: int, measured_there: bool, trained_there: bool
) -> None:
    extension = replace(EXTENSION, mode="generated", num_positions=number)
    text = render(provenance=replace(EXTENDED, extension=extension), num_positions=number)
    assert ("nothing was measured" not in text) == measured_there
    assert ("never trained" not in text) == trained_there


def test_licence_of_the_base_model_is_in_metadata_and_text() -> None:
    card = ModelCard(render(licence=Licence("other", "openrail", "LICENSE", is_of_base=True)))
    assert (card.data.license, card.data["license_name"], card.data["license_link"]) == ("other", "openrail", "LICENSE")
    assert re.search("## Licence\n\nopenrail.* base$", card.text.rstrip())
    assert "No licence is stated" in render(licence=Licence())


def test_sources_are_listed_if_the_author_describes_no_data() -> None:
    files = tuple(SourceFile(path=f"/maker/secret/{number}.txt", sha256="0" * 64) for number in range(5))
    saved = SourceRecord(dataset="/maker/secret/saved", split="train")
    sources = (SourceRecord(dataset="owner/novels", split="train", commit="c0ffee"), saved, SourceRecord(files=files))
    rows = rows_manifest(40)
    card = ModelCard(render(replace(CARD, data=()), rows=of_sources(rows, *sources)))
    assert card.data.datasets == ["owner/novels"]
    for line in ("owner/novels, train, commit c0ffee", "saved, train", "0.txt, 1.txt, 2.txt and 2 more files"):
        assert f"- {line} (" in card.text
    assert "secret" not in card.text


@pytest.mark.parametrize(("seconds", "duration"), [(9000.0, "2.5 hours"), (90.0, "1.5 minutes"), (0.4, "0.4 seconds")])
def test_duration_is_in_a_readable_unit(seconds: float, duration: str) -> None:
    assert f"Trained for {duration} on one H200." in render(training=Training({}, seconds))


def test_accuracy_is_left_out_if_nothing_was_selected() -> None:
    nothing = replace(FULL.measured["long_after"], whole=Accuracy(None, None, None, 0))
    evaluation = replace(FULL, measured={**FULL.measured, "long_after": nothing})
    assert "## Accuracy" not in render(evaluation=evaluation)


if __name__ == "__main__":
    SNAPSHOT.write_text(whole_card(), encoding="utf-8")
