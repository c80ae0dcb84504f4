"""Text from outside, in any field of any artifact, changes no structure: of cards, of their code, of pages.

Each report is made twice: with harmless text in every field that may hold any text, and with hostile text there. Fields
that are added later take part by themselves; the last test names reports that no test makes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.artifacts.provenance import AddedTokens, ModelSource, Provenance
from longmlm.hubs.licences import Licence
from longmlm.release import dataset
from longmlm.release.dataset import Publication
from longmlm.reports import pages
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.reports.evaluation import evaluation_page
from longmlm.reports.model_card import CardFacts, Training, model_card, task_card
from longmlm.reports.packing import Example, packing_page
from longmlm.settings.prepare import RowsCard
from longmlm.settings.release import ReleaseCard
from tests.support.foreign import HOSTILE, PLAIN, card_structure, page_structure, with_text
from tests.support.rows import rows_manifest

BASE = ModelSource(name="owner/base", revision="c0ffee")
LICENCE = Licence("other", "A licence", "https://example.org/licence", is_of_base=True)
CARD = ReleaseCard(title="Title", hardware="one H200", languages=("en",))
MARKDOWN = {"about": "**News**.", "reading": "It reads.", "scores": "It scores.", "training": "| a |", "comparison": ""}
TUNED = FineTuned(
    auto_class="AutoModelForSequenceClassification",
    num_tokens=512,
    labels=("a", "b"),
    metric="accuracy",
    score=80.0,
    data=("news.jsonl",),
    **MARKDOWN,
)


def card(text: str) -> ReleaseCard:
    """Returns an author's settings without a description and lines on data, which are Markdown of their own."""
    return replace(with_text(CARD, ReleaseCard, text), description="", data=())


@dataclass(frozen=True, slots=True)
class Reports:
    """Every report, of artifacts with a text before each of their strings."""

    evaluation: Evaluation
    trained: Provenance

    def model_card(self, text: str, **facts: Any) -> str:
        known = {
            "address": Address("tiny"),
            "provenance": self.trained,
            "evaluation": self.evaluation,
            "rows": rows_manifest(),
        }
        known |= {"training": Training({"seed": "1"}, 60.0), "licence": LICENCE, "num_positions": 512}
        known |= {"carried": ("pooler",), "modules": ("Pooling",), "has_onnx": True}
        return model_card(card(text), with_text(CardFacts(**{**known, **facts}), CardFacts, text))

    def task_card(self, text: str) -> str:
        tuned = replace(with_text(TUNED, FineTuned, text), **MARKDOWN)  # their writer has escaped what is in them
        provenance = with_text(Provenance(started_from=BASE), Provenance, text)
        code = LoadingCode("load_task.md", "text-classification")
        return task_card(card(text), tuned, provenance, with_text(LICENCE, Licence, text), code, Address("tuned"))

    def dataset_card(self, text: str) -> str:
        publication = Publication("owner/tokenizer", RowsCard(license="mit"), "owner/rows", "v1")
        made = rows_manifest()
        made = replace(made, report=replace(made.report, set_aside={"no text": 7}))
        manifest = with_text(made, type(made), text)
        return dataset.dataset_card(
            manifest,
            replace(with_text(publication, Publication, text), card=RowsCard(license=f"{text}mit")),
            f"{text}rows",
        )

    def packing_page(self, text: str) -> str:
        made = rows_manifest()
        made = replace(made, report=replace(made.report, set_aside={"no text": 7}))
        return packing_page(with_text(made, type(made), text), Example(5, 1, f"{text}row"), f"{text}command")

    def evaluation_page(self, text: str) -> str:
        return evaluation_page(with_text(self.evaluation, Evaluation, text), f"{text}command")


@pytest.fixture
def reports(provenance: Provenance, measured: Evaluation) -> Reports:
    return Reports(measured, provenance)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_outside_is_shown_on_cards_as_text(reports: Reports, text: str) -> None:
    trained = reports.trained
    added = AddedTokens(base=BASE, file_sha256="0", num_added=3, num_skipped=1)
    histories = [
        trained,
        replace(trained, extension=None, added_tokens=added, started_from=None),
        replace(trained, extension=None, started_from=BASE),
    ]
    cards: list[Callable[[str], str]] = [reports.dataset_card, reports.task_card]
    cards += [lambda text, history=history: reports.model_card(text, provenance=history) for history in histories]
    cards += [lambda text: reports.model_card(text, evaluation=None, num_global_tokens=2)]
    for made in cards:
        plain = card_structure(made(PLAIN))
        assert len(plain[1]) > 50
        assert card_structure(made(text)) == plain


@pytest.mark.parametrize("text", HOSTILE[:1])
@pytest.mark.parametrize("name", ["packing_page", "evaluation_page"])
def test_text_from_outside_is_shown_on_pages_as_text(reports: Reports, text: str, name: str) -> None:
    plain = page_structure(getattr(reports, name)(PLAIN))
    assert len(plain) > 50
    assert page_structure(getattr(reports, name)(text)) == plain


def test_every_report_is_tested() -> None:
    folder = Path(pages.__file__).parent
    modules = [*folder.glob("*.py"), Path(dataset.__file__)]
    made = {
        name for path in modules for name in re.findall(r"^def (\w+_(?:card|page))\(", path.read_text(), re.MULTILINE)
    }
    assert {name for name in made if not name.startswith(("write_", "_"))} == {
        name for name in vars(Reports) if name.endswith(("_card", "_page"))
    }
    templates = {path.stem for path in (folder / "templates").glob("*_card.md")}
    assert templates == {name for name in vars(Reports) if name.endswith("_card")}
