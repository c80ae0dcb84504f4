"""The model card of a release: metadata for hubs, how to load the model, what was measured, how it was made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from longmlm.artifacts.evaluation import Evaluation
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
    provenance: Mapping[str, Any]
    evaluation: Evaluation | None
    rows: Mapping[str, Any]
    training: Training
    licence: Licence
    has_onnx: bool = False


def model_card(card: ReleaseCard, facts: CardFacts) -> str:
    """Returns README.md."""
    provenance, evaluation, training = facts.provenance, facts.evaluation, facts.training
    trained = provenance.get("trained") or {}
    exported = trained.get("exported_accuracy")
    reported = evaluation.accuracy("long_after") if evaluation else trained.get("accuracy")
    accuracy = reported if exported is None else exported
    base_cut = evaluation.accuracy("base_cut") if evaluation else training.base_cut
    settings = Table(["setting", "value"], list(training.settings.items()))
    return render(
        "model_card.md",
        metadata=_metadata(card, facts, accuracy),
        card=card,
        history=_history(provenance),
        hub="",
        name=facts.name,
        revision_argument="",
        lengths=_lengths(provenance),
        has_onnx=facts.has_onnx,
        evaluation=evaluation,
        accuracy=accuracy,
        exported_accuracy=exported,
        base_cut=base_cut,
        is_below_base=accuracy is not None and base_cut is not None and accuracy < base_cut,
        is_extended="base" in provenance,
        not_recovered=NOT_RECOVERED,
        explanation=evaluation and explanation(evaluation),
        accuracy_table=evaluation and markdown_table(accuracy_table(evaluation)),
        blocks_picture=BLOCKS_PICTURE,
        recovery_picture=RECOVERY_PICTURE,
        duration=_duration(card, training),
        settings_table=training.settings and markdown_table(settings),
        corpora=card.data or corpora(facts.rows),
        packing_table=markdown_table(packing_table(facts.rows["report"])),
        row_length=trained.get("row_length"),
        licence=facts.licence,
        base_name=facts.licence.is_of_base and public_name(provenance, _origin(provenance)),
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


def public_name(provenance: Mapping[str, Any], key: str) -> str:
    """Returns a model's name on the hub, which has a revision, or the last part of a local folder's path."""
    model = provenance[key]
    return model if provenance.get(f"{key}_revision") else Path(model).name


def public_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what longmlm.json of a release says: without the paths of local folders."""
    named = {key: public_name(provenance, key) for key in ("base", "started_from") if provenance.get(key)}
    return {**provenance, **named}


def _origin(provenance: Mapping[str, Any]) -> str:
    return "base" if "base" in provenance else "started_from"


def _metadata(card: ReleaseCard, facts: CardFacts, accuracy: float | None) -> str:
    """Returns the YAML that hubs read."""
    provenance, key = facts.provenance, _origin(facts.provenance)
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
        base_model=provenance[key] if provenance.get(f"{key}_revision") else None,
        datasets=datasets(facts.rows) or None,
        tags=["masked-lm", "long-context"] if "base" in provenance else ["masked-lm"],
        model_name=card.title,
        eval_results=[result] if result else None,
    )
    return data.to_yaml()


def _history(provenance: Mapping[str, Any]) -> str:
    """Returns in a sentence how the model was made."""
    trained = provenance.get("trained") or {}
    steps = f"{trained.get('steps', 0):,} steps, {trained.get('tokens', 0):,} tokens"
    for before in provenance.get("trained_before", ()):
        steps += f", after {before['steps']:,} steps on {before['tokens']:,} tokens in an earlier run"
    on_rows = f"on rows of {trained.get('row_length')} tokens: {steps}."
    if not {"base", "started_from"} & provenance.keys():
        return f"Pretrained from scratch with longmlm {on_rows}"
    if "base" not in provenance:
        name, commit = public_name(provenance, "started_from"), provenance.get("started_from_revision") or "local"
        return f"`{name}` (revision {commit}), pretrained further with longmlm {on_rows}"
    return (
        f"`{public_name(provenance, 'base')}` (revision {provenance['base_revision'] or 'local'}), its "
        f"{provenance['base_positions']} trained positions extended to {provenance['num_positions']} by longmlm "
        f"({provenance['initialisation']}, alpha {provenance['alpha']}), then pretrained {on_rows}"
    )


def _duration(card: ReleaseCard, training: Training) -> str:
    hours = f" for {training.seconds / 3600:,.1f} hours" if training.seconds else ""
    hardware = f" on {card.hardware}" if card.hardware else ""
    return f"Trained{hours}{hardware}." if hours or hardware else ""


def _lengths(provenance: Mapping[str, Any]) -> str:
    """Returns how many tokens the model reads, and at which lengths nothing is known of it."""
    trained = (provenance.get("trained") or {}).get("row_length")
    length = provenance.get("num_positions", trained)
    text = f"It reads up to {length} tokens."
    if length != trained:
        text += f" It was trained and measured on rows of {trained} tokens; at other lengths nothing was measured."
        if length > trained and provenance.get("mode") == "generated":
            text += " Positions beyond that are computed from the base positions and were never trained on text."
    return text
