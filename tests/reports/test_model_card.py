"""The model card: metadata that hubs read, the measured numbers, and what must not be withheld."""

import re
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.artifacts.provenance import ModelSource, Provenance, TrainingRecord
from longmlm.artifacts.rows import RowsManifest, SourceFile, SourceRecord
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address, CardCode, LoadingCode
from longmlm.reports.model_card import CardFacts, Training, model_card
from longmlm.settings.release import ReleaseCard
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS

CARD = ReleaseCard(
    title="Tiny: a model, 40 long",
    license="apache-2.0",
    description="A model of *nobody*.",
    languages=("en", "zh"),
    data=("demo novels, public domain",),
)
HUB = ModelSource(name="somebody/roberta", revision="c0ffee")
NOT_RECOVERED = "**Not recovered"
HERE, ON_HUB, ON_MODELSCOPE = Address("tiny-40"), Address("owner/tiny", "hf", "v1"), Address("owner/tiny", "ms")


def with_base(provenance: Provenance, base: ModelSource) -> Provenance:
    return replace(provenance, extension=replace(provenance.extension, base=base))


def render(
    provenance: Provenance,
    evaluation: Evaluation | None,
    rows: RowsManifest,
    author: ReleaseCard = CARD,
    **facts: object,
) -> str:
    """Returns the card of the model, with other facts than usual."""
    num_positions = provenance.extension.num_positions if provenance.extension else LONG_POSITIONS
    facts = {"training": Training(), "licence": Licence("apache-2.0"), "num_positions": num_positions} | facts
    return model_card(
        author, CardFacts(name="tiny-40", provenance=provenance, evaluation=evaluation, rows=rows, **facts)
    )


def test_metadata_is_what_hubs_read(provenance: Provenance, measured: Evaluation, rows: RowsManifest) -> None:
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
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    hub = with_base(provenance, HUB)
    assert ModelCard(render(provenance, measured, rows)).data.base_model is None
    assert ModelCard(render(hub, measured, rows)).data.base_model == "somebody/roberta"


def test_numbers_are_the_measured_ones(provenance: Provenance, measured: Evaluation, rows: RowsManifest) -> None:
    text = ModelCard(render(provenance, measured, rows)).text
    for name in ("base_cut", "base_windows", "long_before", "long_after"):
        whole = measured.measured[name].whole
        assert f"{whole.accuracy:.2f} ± {whole.standard_error:.2f}" in text
        assert f"| {name} " in text
    assert f"extended from {NUM_POSITIONS} trained positions to {LONG_POSITIONS}" in text
    assert "3 steps, 1,000 tokens" in text
    assert f"{rows.report.train.documents:,} | {rows.report.held_out.documents:,} |" in text
    assert "(hierarchical, alpha 0.4)" in text
    assert "- demo novels, public domain" in text
    assert CARD.title in text
    assert CARD.description in text
    assert 'model="tiny-40"' in text


def test_card_cites_the_method_where_it_was_used(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    other = replace(provenance, extension=replace(provenance.extension, initialisation="random"))
    for source in ("https://kexue.fm/archives/7947", "arXiv:1907.11692"):
        assert source in ModelCard(render(provenance, measured, rows)).text
        assert source not in ModelCard(render(other, measured, rows)).text


def test_card_is_well_formed_markdown_whatever_it_contains(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    everything = {"training": Training({"seed": "7"}, 9000.0, 1.0), "has_onnx": True}
    short = Provenance(trained=replace(provenance.trained, accuracy=None))
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


def test_card_says_so_if_the_accuracy_was_not_recovered(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    base_cut = measured.measured["base_cut"]
    better = replace(base_cut, whole=replace(base_cut.whole, accuracy=99.0))
    lost = replace(measured, measured=measured.measured | {"base_cut": better})
    assert NOT_RECOVERED in render(provenance, lost, rows)
    assert NOT_RECOVERED not in render(provenance, measured, rows)


def test_card_shows_the_pictures_that_exist(provenance: Provenance, measured: Evaluation, rows: RowsManifest) -> None:
    whole = Accuracy(1.0, 0.5, 3.0, 10)
    line = EvaluationMetrics(step=0, tokens=0, held_out=Measured(whole, (whole,)))
    without, with_curve = (render(provenance, replace(measured, curve=curve), rows) for curve in ((), (line,)))
    assert "(blocks.png)" in without
    assert "recovery.png" not in without
    assert "(recovery.png)" in with_curve


def test_accuracy_is_that_of_the_files_themselves_if_they_were_measured(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    base_cut = measured.accuracy("base_cut")
    for accuracy, is_lost in ((base_cut + 0.014, False), (base_cut - 0.014, True)):
        card = ModelCard(render(provenance.exported(accuracy), measured, rows))
        assert card.data.eval_results[0].metric_value == round(accuracy, 2)
        assert re.search(rf"loaded again.* {accuracy:.2f} %", card.text)
        assert (NOT_RECOVERED in card.text) == is_lost


def test_card_says_so_if_the_base_model_was_not_measured(provenance: Provenance, rows: RowsManifest) -> None:
    unknown = "base model was not measured"
    assert unknown in render(provenance, None, rows)
    assert unknown not in render(provenance, None, rows, training=Training(base_cut=1.0))
    assert unknown not in render(Provenance(trained=provenance.trained), None, rows)


def test_model_from_scratch_needs_no_base(rows: RowsManifest) -> None:
    trained = TrainingRecord(row_length=128, steps=500, tokens=1_234_567, accuracy=31.25)
    card = ModelCard(render(Provenance(trained=trained), None, rows, replace(CARD, data=())))
    assert card.data.base_model is None
    assert card.data.tags == ["masked-lm"]
    assert card.data.eval_results[0].metric_value == 31.25
    assert "from scratch" in card.text
    assert "500 steps, 1,234,567 tokens" in card.text
    assert "31.25 %" in card.text


def test_earlier_runs_and_the_start_are_named(provenance: Provenance, rows: RowsManifest) -> None:
    earlier = TrainingRecord(row_length=20, steps=70, tokens=9_000)
    start = ModelSource(name="/maker/secret/start")
    text = render(Provenance(trained=provenance.trained, trained_before=(earlier,), started_from=start), None, rows)
    assert "`start`, pretrained further" in text
    assert "1,000 tokens, after 70 steps on 9,000 tokens in an earlier run." in text
    assert "secret" not in text


def test_lengths_at_which_nothing_was_measured_are_named(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    cards = {}
    for number in (20, 40, 99):
        extension = replace(provenance.extension, mode="generated", num_positions=number)
        cards[number] = render(replace(provenance, extension=extension), measured, rows)
    assert "nothing was measured" not in cards[40]
    assert "at other lengths nothing was measured" in cards[20]
    assert "never trained" not in cards[20]
    assert "never trained" in cards[99]


def test_licence_of_the_base_model_is_in_metadata_and_text(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    licence = Licence("other", "openrail", "LICENSE", is_of_base=True)
    card = ModelCard(render(provenance, measured, rows, licence=licence))
    assert (card.data.license, card.data["license_name"], card.data["license_link"]) == ("other", "openrail", "LICENSE")
    assert re.search("## Licence\n\nopenrail.* base$", card.text.rstrip())
    assert "## Licence\n\nNo licence is stated: " in render(provenance, measured, rows, licence=Licence())


def test_sources_are_listed_if_the_author_describes_no_data(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    files = tuple(SourceFile(path=f"/maker/secret/{number}.txt", sha256="0" * 64) for number in range(5))
    sources = (
        SourceRecord(dataset="owner/novels", split="train", commit="c0ffee"),
        SourceRecord(dataset="/maker/secret/saved", split="train"),
        SourceRecord(files=files),
    )
    author = replace(CARD, data=())
    manifest = replace(rows, plan=replace(rows.plan, sources=sources))
    card = ModelCard(render(provenance, measured, manifest, author))
    assert card.data.datasets == ["owner/novels"]
    assert "- owner/novels, train, commit c0ffee (" in card.text
    assert "- saved, train (" in card.text
    assert "- 0.txt, 1.txt, 2.txt and 2 more files (" in card.text
    assert "secret" not in card.text
    assert "- text.jsonl (" in render(provenance, measured, rows, author)


def test_checkpoint_below_its_base_model_is_marked(provenance: Provenance, rows: RowsManifest) -> None:
    for base_cut, is_below in ((12.0, False), (13.0, True), (None, False)):
        text = render(provenance, None, rows, training=Training(base_cut=base_cut))
        assert "12.50 %" in text
        assert (NOT_RECOVERED in text) == is_below


@pytest.mark.parametrize(
    ("base_cut", "exported", "expected"),
    [
        (40.0, None, r"\*\*Not recovered: .*; its accuracy is \d+\.\d\d ± \S+ points below that .*\.\*\*"),
        (1.0, None, r"^Recovered: .* is \d+\.\d\d ± \S+ points above that of the base model on rows cut"),
        (1.0, 0.9, r"\*\*Not recovered, within the error: .*; its accuracy is 0\.10 ± \S+ points below"),
        (1.0, 1.2, r"^Recovered, within the error: .* is 0\.20 ± \S+ points above"),
    ],
)
def test_the_difference_is_stated_with_its_error(base_cut, exported, expected, provenance, measured, rows) -> None:
    base = replace(measured.measured["base_cut"], whole=replace(measured.measured["base_cut"].whole, accuracy=base_cut))
    changed = replace(measured, measured={**measured.measured, "base_cut": base})
    provenance = provenance if exported is None else provenance.exported(exported)
    assert re.search(expected, render(provenance, changed, rows), re.MULTILINE)


@pytest.mark.parametrize("has_onnx", [False, True])
def test_address_changes_the_code_and_nothing_else(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest, has_onnx: bool
) -> None:
    card = render(provenance, measured, rows, has_onnx=has_onnx)
    codes: list[CodeTemplate] = ["load_model.md", "load_onnx.md"] if has_onnx else ["load_model.md"]
    code = CardCode(HERE, tuple(map(LoadingCode, codes)))
    hub, modelscope = code.readdressed(card, ON_HUB), code.readdressed(card, ON_MODELSCOPE)
    assert hub.count('"owner/tiny", revision="v1"') == 1 + 2 * has_onnx
    assert modelscope.count('download_repo("owner/tiny", "model")') == 1 + has_onnx
    assert replace(code, address=ON_HUB).readdressed(hub, HERE) == card
    for text in (hub, modelscope):
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(code, "card", "exec")


def test_code_of_the_author_stays_as_it_is(provenance: Provenance, measured: Evaluation, rows: RowsManifest) -> None:
    code = '```python\npipeline("text-classification", global_attention_mask=1)\n```\n'
    author = replace(CARD, description=f"A model of notes.\n\n## Use\n\n{code}")
    card_code = CardCode(HERE, (LoadingCode("load_model.md"),))
    on_hub = card_code.readdressed(render(provenance, measured, rows, author), Address("owner/name", "hf"))
    assert on_hub.count(code) == 1 and on_hub.count('pipeline("fill-mask", model="owner/name")') == 1
    assert on_hub.count("```python") == 2


def test_training_is_shown_if_it_is_known(provenance: Provenance, rows: RowsManifest) -> None:
    author = replace(CARD, hardware="one H200")
    for seconds, duration in ((9000.0, "2.5 hours"), (90.0, "1.5 minutes"), (0.4, "0.4 seconds")):
        training = Training({"masking.selected_fraction": "0.2"}, seconds)
        text = render(provenance, None, rows, author, training=training)
        assert f"Trained for {duration} on one H200." in text
    assert "| masking.selected_fraction | 0.2 |" in text
    assert "## Training" not in render(provenance, None, rows)


def test_what_was_carried_over_untrained_is_named(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    said = "Carried over untrained from the base model"
    text = ModelCard(render(provenance, measured, rows, carried=("pooler", "NSP head"))).text
    assert f"{said}: pooler, NSP head." in text
    assert said not in ModelCard(render(provenance, measured, rows)).text


def test_card_of_a_sentence_transformer_loads_it_from_where_it_is_published(
    provenance: Provenance, measured: Evaluation, rows: RowsManifest
) -> None:
    card = render(provenance, measured, rows, modules=("Pooling", "Normalize"), has_onnx=True)
    assert ModelCard(card).data.tags == ["masked-lm", "long-context", "sentence-transformers"]
    assert "sentence-transformers model (Pooling, Normalize)" in card
    assert 'SentenceTransformer("tiny-40")' in card
    assert "sentence-transformers" not in render(provenance, measured, rows)
    code = CardCode(HERE, tuple(map(LoadingCode, ("load_model.md", "load_sentences.md", "load_onnx.md"))))
    on_hub = code.readdressed(card, ON_HUB)
    calls = ("SentenceTransformer(", "AutoTokenizer.from_pretrained(", "cached_file(", 'pipeline("fill-mask", model=')
    for call in calls:
        assert f'{call}"owner/tiny", revision="v1"' in on_hub
    on_modelscope = replace(code, address=ON_HUB).readdressed(on_hub, ON_MODELSCOPE)
    assert on_modelscope.count('HubApi().download_repo("owner/tiny", "model")') == 3
    assert "SentenceTransformer(folder)" in on_modelscope
    assert replace(code, address=ON_MODELSCOPE).readdressed(on_modelscope, ON_HUB) == on_hub
