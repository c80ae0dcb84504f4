"""The model card of a release: metadata for hubs, how to load the model, what was measured, how it was made."""

import re
from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.provenance import Extension, Provenance, TrainingRecord
from longmlm.artifacts.rows import RowsManifest
from longmlm.reports.evaluation import BLOCKS_PICTURE, RECOVERY_PICTURE, accuracy_table, explanation
from longmlm.reports.facts import Licence, Training, corpora, datasets
from longmlm.reports.packing import packing_table
from longmlm.reports.rendering import render
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.release import ReleaseCard

NOT_RECOVERED = (
    "**Not recovered: on whole rows this model predicts fewer masked tokens correctly than its base model on rows cut "
    "to the base model's length.**"
)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card says besides its author's text: `rows` is their manifest, `name` the released folder's."""

    name: str
    provenance: Provenance
    evaluation: Evaluation | None
    rows: RowsManifest
    training: Training
    licence: Licence
    has_onnx: bool = False


def model_card(card: ReleaseCard, facts: CardFacts) -> str:
    """Returns README.md."""
    provenance, evaluation, training = facts.provenance, facts.evaluation, facts.training
    trained = provenance.trained
    assert trained is not None  # checked by the release gate
    exported = trained.exported_accuracy
    reported = evaluation.accuracy("long_after") if evaluation else trained.accuracy
    accuracy = reported if exported is None else exported
    base_cut = evaluation.accuracy("base_cut") if evaluation else training.base_cut
    settings = Table(["setting", "value"], list(training.settings.items()))
    return render(
        "model_card.md",
        metadata=_metadata(card, facts, accuracy),
        card=card,
        history=_history(provenance, trained),
        hub="",
        name=facts.name,
        revision_argument="",
        lengths=_lengths(provenance.extension, trained),
        has_onnx=facts.has_onnx,
        evaluation=evaluation,
        accuracy=accuracy,
        exported_accuracy=exported,
        base_cut=base_cut,
        is_below_base=accuracy is not None and base_cut is not None and accuracy < base_cut,
        is_extended=provenance.extension is not None,
        not_recovered=NOT_RECOVERED,
        explanation=evaluation and explanation(evaluation),
        accuracy_table=evaluation and markdown_table(accuracy_table(evaluation)),
        blocks_picture=BLOCKS_PICTURE,
        recovery_picture=RECOVERY_PICTURE,
        duration=_duration(card, training),
        settings_table=training.settings and markdown_table(settings),
        corpora=card.data or corpora(facts.rows),
        packing_table=markdown_table(packing_table(facts.rows.report)),
        row_length=trained.row_length,
        licence=facts.licence,
        base_name=provenance.source and provenance.source.public_name,
    )


def addressed(card: str, hub: str, name: str, revision: str | None = None) -> str:
    """Returns the card with code that loads the model from the hub, "hf" or "ms", or else from a folder."""
    target = {"hub": hub, "name": name, "revision_argument": f', revision="{revision}"' if revision else ""}
    for template, code in (
        ("load_onnx.md", r"```python\nimport onnx.*?```\n"),
        ("load_model.md", r"```python\n.*?```\n"),
    ):
        text = render(template, **target)
        card = re.sub(code, lambda _, text=text: text, card, count=1, flags=re.DOTALL)
    return card


def _metadata(card: ReleaseCard, facts: CardFacts, accuracy: float | None) -> str:
    """Returns the YAML that hubs read."""
    source = facts.provenance.source
    result = accuracy is not None and EvalResult(
        task_type="fill-mask",
        dataset_type="held-out-rows",
        dataset_name=f"held-out documents of {', '.join(card.data) or 'the corpus'}",
        metric_type="accuracy",
        metric_name="masked-token accuracy (%)",
        metric_value=round(accuracy, 2),
    )
    data = ModelCardData(
        language=list(card.languages),
        license=facts.licence.identifier,
        license_name=facts.licence.name,
        license_link=facts.licence.link,
        library_name="transformers",
        pipeline_tag="fill-mask",
        base_model=source.name if source and source.revision else None,
        datasets=datasets(facts.rows) or None,
        tags=["masked-lm", "long-context"] if facts.provenance.extension else ["masked-lm"],
        model_name=card.title,
        eval_results=[result] if result else None,
    )
    return data.to_yaml()


def _history(provenance: Provenance, trained: TrainingRecord) -> str:
    """Returns in a sentence how the model was made."""
    extension, started = provenance.extension, provenance.started_from
    steps = f"{trained.steps:,} steps, {trained.tokens:,} tokens"
    for before in provenance.trained_before:
        steps += f", after {before.steps:,} steps on {before.tokens:,} tokens in an earlier run"
    on_rows = f"on rows of {trained.row_length} tokens: {steps}."
    if extension:
        return (
            f"`{extension.base.public_name}` (revision {extension.base.revision or 'local'}), its "
            f"{extension.base_positions} trained positions extended to {extension.num_positions} by longmlm "
            f"({extension.initialisation}, alpha {extension.alpha}), then pretrained {on_rows}"
        )
    if started:
        named = f"`{started.public_name}` (revision {started.revision or 'local'})"
        return f"{named}, pretrained further with longmlm {on_rows}"
    return f"Pretrained from scratch with longmlm {on_rows}"


def _duration(card: ReleaseCard, training: Training) -> str:
    hours = f" for {training.seconds / 3600:,.1f} hours" if training.seconds else ""
    hardware = f" on {card.hardware}" if card.hardware else ""
    return f"Trained{hours}{hardware}." if hours or hardware else ""


def _lengths(extension: Extension | None, trained: TrainingRecord) -> str:
    """Returns how many tokens the model reads, and at which lengths nothing is known of it."""
    length = extension.num_positions if extension else trained.row_length
    text = f"It reads up to {length} tokens."
    if extension and length != trained.row_length:
        text += (
            f" It was trained and measured on rows of {trained.row_length} tokens; at other lengths nothing was "
            "measured."
        )
        if length > trained.row_length and extension.mode == "generated":
            text += " Positions beyond that are computed from the base positions and were never trained on text."
    return text
