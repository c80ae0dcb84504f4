"""The model card of a released fine-tuned model."""

from huggingface_hub import EvalResult
from markupsafe import Markup

from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.artifacts.provenance import Provenance
from longmlm.escaping import markup
from longmlm.hubs.licences import Licence
from longmlm.reports.model_card import author_lines, metadata
from longmlm.reports.pages import render
from longmlm.settings.release import ReleaseCard

PIPELINE_TASKS = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}


def task_card(card: ReleaseCard, tuned: FineTuned, provenance: Provenance, licence: Licence, code: Markup) -> str:
    """Returns README.md; `code` is the block that loads the model."""
    text = render(
        "task_card.md",
        metadata=_metadata(card, tuned, provenance, licence),
        card=card,
        code=code,
        licence=licence,
        provenance=provenance,
        parts={name: markup(getattr(tuned, name)) for name in ("about", "reading", "scores", "training", "comparison")},
        data=author_lines(card) or [f"{name} (licence not stated)" for name in tuned.data],
    )
    return str(text)


def _metadata(card: ReleaseCard, tuned: FineTuned, provenance: Provenance, licence: Licence) -> Markup:
    task = PIPELINE_TASKS[tuned.auto_class]
    result = EvalResult(
        task_type=task,
        dataset_type="test-documents",
        dataset_name=f"test documents of {', '.join(card.data) or ', '.join(tuned.data)}",
        metric_type=tuned.metric.replace(" ", "_").lower(),
        metric_name=f"{tuned.metric} (%)",
        metric_value=round(tuned.score, 2),
    )
    return metadata(
        card,
        licence,
        provenance,
        language=list(card.languages) or None,
        library_name="transformers",
        pipeline_tag=task,
        tags=["long-context"] if provenance.extension else None,
        eval_results=[result],
    )
