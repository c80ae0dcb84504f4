"""The model card: metadata that hubs read, the measured numbers, and what must not be withheld."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.provenance import ModelSource, Provenance, TrainingRecord
from longmlm.artifacts.rows import SourceFile, SourceRecord
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address
from longmlm.reports.model_card import CardFacts, Training, model_card
from longmlm.settings.release import ReleaseCard
from tests.support.accepted import changes
from tests.support.evaluations import FULL, measured
from tests.support.rows import of_sources, rows_manifest
from tests.support.tiny import LONG_POSITIONS, tiny_extension

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


def with_views(**views: Measured) -> dict[str, Any]:
    return {"evaluation": replace(FULL, measured=FULL.measured | views)}


def of_length(number: int) -> dict[str, Any]:
    extension = replace(EXTENSION, mode="generated", num_positions=number)
    return {"provenance": replace(EXTENDED, extension=extension), "num_positions": number}


ON_MODELSCOPE = replace(EXTENDED, extension=replace(EXTENSION, base=ModelSource(name="ms:maker/base", revision="c0")))
START = ModelSource(name="/maker/secret/start")
FILES = tuple(SourceFile(path=f"/maker/secret/{number}.txt", sha256="0" * 64) for number in range(5))
SOURCES = (
    SourceRecord(dataset="owner/novels", split="train", commit="c0ffee"),
    SourceRecord(dataset="/maker/secret/saved", split="train"),
    SourceRecord(files=FILES),
)
NOTHING = replace(FULL.measured["long_after"], whole=Accuracy(None, None, None, 0))
VARIANTS: dict[str, dict[str, Any]] = {
    "a base model on ModelScope": {"provenance": ON_MODELSCOPE},
    "a base model on ModelScope, released on Hugging Face": {
        "address": Address("owner/tiny", "hf"),
        "provenance": ON_MODELSCOPE,
    },
    "a base model on ModelScope, released there": {"address": Address("owner/tiny", "ms"), "provenance": ON_MODELSCOPE},
    "a Longformer": {"num_global_tokens": 2},
    "from scratch, without an evaluation": BARE,
    "pretrained further": {"provenance": Provenance(trained=TRAINED, started_from=START)},
    "tiled positions": {"provenance": replace(EXTENDED, extension=replace(EXTENSION, initialisation="tile", alpha=0))},
    "not recovered": with_views(base_chunks=measured(40.0)),
    "recovered, but not as exported": {**with_views(base_chunks=measured(30.0)), "provenance": EXTENDED.exported(28.5)},
    "exported a little worse": {**with_views(base_chunks=measured(30.0)), "provenance": EXTENDED.exported(29.9)},
    "exported a little better": {**with_views(base_chunks=measured(30.0)), "provenance": EXTENDED.exported(30.2)},
    "worse on short texts": with_views(long_after_cut=measured(28.0, 1)),
    "worse on short texts, perhaps by chance": with_views(long_after_cut=measured(29.0, 1)),
    "nothing selected": with_views(long_after=NOTHING),
    "without a curve": {"evaluation": replace(FULL, curve=())},
    "generated positions, fewer than those evaluated": of_length(20),
    "generated positions, as many": of_length(40),
    "generated positions, more": of_length(99),
    "the licence of the base model": {"licence": Licence("other", "openrail", "LICENSE", is_of_base=True)},
    "no licence": {"licence": Licence()},
    "data of the rows": {"author": replace(CARD, data=()), "rows": of_sources(rows_manifest(40), *SOURCES)},
    "trained for hours": {"training": Training({}, 9000.0)},
    "trained for minutes": {"training": Training({}, 90.0)},
    "trained for less than a second": {"training": Training({}, 0.4)},
}


def test_cards_are_those_that_were_accepted(accepted: Callable[[str, str], None]) -> None:
    accepted("model_card.md", whole_card())
    cards = {name: render(**facts) for name, facts in VARIANTS.items()}
    assert not [name for name, card in cards.items() if "secret" in card]
    accepted("model_cards.diff", changes(render(), cards))


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
