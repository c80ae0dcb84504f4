"""The cards of released models: README.md from the files of checkpoint, base model, rows and evaluation."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from markupsafe import Markup

from longmlm.artifacts.accuracy import PairAccuracy
from longmlm.artifacts.evaluation import BLOCKS_PICTURE, RECOVERY_PICTURE, Evaluation
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.rows import RowsManifest
from longmlm.errors import ArtifactError
from longmlm.escaping import author_markdown, markup, single_line
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address, CodeTemplate, LoadingCode
from longmlm.reports.context import context_sentence, gains_table
from longmlm.reports.evaluation import accuracy_table, explanation, finding, is_good
from longmlm.reports.packing import name_of, packing_table
from longmlm.reports.pages import front_matter, render
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.prepare import RowsCard
from longmlm.settings.pretrain import number_format
from longmlm.settings.publishing import Hub
from longmlm.settings.release import ReleaseCard
from longmlm.settings.tables import leaves
from longmlm.training.run_folder import read_state

PIPELINE_TASKS = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}


@dataclass(frozen=True, slots=True)
class Training:
    """How a checkpoint was trained, as far as known: its settings by name, and seconds."""

    settings: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card states beyond its author's text; its code loads the model from `address`.

    `carried` names parts of the base model that were not trained, `modules` the sentence-transformers modules. The
    first `num_global_tokens` of a text need a global_attention_mask of 1. The example in the code is in `language`.
    """

    address: Address
    provenance: Provenance
    evaluation: Evaluation | None
    rows: RowsManifest
    training: Training
    licence: Licence
    num_positions: int
    has_onnx: bool = False
    carried: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    num_global_tokens: int = 0
    language: str = "en"

    @property
    def pairs(self) -> PairAccuracy | None:
        """The accuracy on pairs, in the evaluation or else at the end of training; None if it is not known."""
        measured = self.evaluation.pairs if self.evaluation else None
        return measured or self.provenance.pair_accuracy

    @property
    def codes(self) -> tuple[LoadingCode, ...]:
        """The code on the card: for the MLM model, and for sentence vectors and ONNX files if it has them."""
        templates: list[CodeTemplate] = ["load_longformer.md" if self.num_global_tokens else "load_model.md"]
        if self.modules:
            templates.append("load_sentences.md")
        if self.has_onnx:
            templates.append("load_onnx.md")
        return tuple(LoadingCode(template, language=self.language) for template in templates)


def model_card(card: ReleaseCard, facts: CardFacts) -> str:
    """Returns README.md of a masked language model."""
    evaluation, training, trained = facts.evaluation, facts.training, facts.provenance.trained
    assert trained is not None  # checked before a release
    accuracy = trained.exported_accuracy
    if accuracy is None:
        accuracy = evaluation.accuracy("long_after") if evaluation else trained.accuracy
    of_files = evaluation
    if evaluation and accuracy is not None:
        of_files = evaluation.with_accuracy("long_after", accuracy)
    tags = ["masked-lm"] + ["long-context"] * bool(facts.provenance.extension)
    text = render(
        "model_card.md",
        metadata=_metadata(
            card,
            facts.licence,
            facts.provenance,
            facts.address.hub,
            language=languages(card, facts.rows),
            pipeline_tag="fill-mask",
            datasets=datasets(facts.rows) or None,
            tags=tags + ["sentence-transformers"] * bool(facts.modules),
            eval_results=None if accuracy is None else [_held_out_result(card, accuracy)],
        ),
        card=card,
        languages=languages(card, facts.rows),
        facts=facts,
        codes={code.template: code.on_card(facts.address) for code in facts.codes},
        accuracy=accuracy,
        finding=of_files and finding(of_files),
        is_good=of_files and is_good(of_files),
        explanation=evaluation and explanation(evaluation),
        accuracy_table=evaluation and markdown_table(accuracy_table(evaluation)),
        context=evaluation and evaluation.gains and context_sentence(evaluation),
        context_table=evaluation and evaluation.gains and markdown_table(gains_table(evaluation, "occurrence")),
        blocks_picture=BLOCKS_PICTURE,
        recovery_picture=RECOVERY_PICTURE,
        duration=_duration(training.seconds) if training.seconds else "",
        settings_table=markdown_table(Table(["setting", "value"], list(training.settings.items()))),
        corpora=author_lines(card) or corpora(facts.rows),
        packing_table=markdown_table(packing_table(facts.rows.report)),
    )
    return str(text)


def task_card(
    card: ReleaseCard, tuned: FineTuned, provenance: Provenance, licence: Licence, code: LoadingCode, address: Address
) -> str:
    """Returns README.md of a fine-tuned model; `code` is the block that loads it from `address`."""
    task = PIPELINE_TASKS[tuned.auto_class]
    result = EvalResult(
        task_type=task,
        dataset_type="test-documents",
        dataset_name=f"test documents of {', '.join(card.data or tuned.data)}",
        metric_type=tuned.metric.replace(" ", "_").lower(),
        metric_name=f"{tuned.metric} (%)",
        metric_value=round(tuned.score, 2),
    )
    text = render(
        "task_card.md",
        metadata=_metadata(
            card,
            licence,
            provenance,
            address.hub,
            language=list(card.languages) or None,
            pipeline_tag=task,
            tags=["long-context"] if provenance.extension else None,
            eval_results=[result],
        ),
        card=card,
        code=code.on_card(address),
        licence=licence,
        provenance=provenance,
        parts={name: markup(getattr(tuned, name)) for name in ("about", "reading", "scores", "training", "comparison")},
        data=author_lines(card) or [f"{name} (licence not stated)" for name in tuned.data],
    )
    return str(text)


def _held_out_result(card: ReleaseCard, accuracy: float) -> EvalResult:
    return EvalResult(
        task_type="fill-mask",
        dataset_type="held-out-rows",
        dataset_name=f"held-out documents of {', '.join(card.data) or 'the corpus'}",
        metric_type="accuracy",
        metric_name="masked-token accuracy (%)",
        metric_value=round(accuracy, 2),
    )


def _metadata(card: ReleaseCard, licence: Licence, provenance: Provenance, hub: Hub, **fields: Any) -> Markup:
    """Returns the card's YAML metadata for hubs: licence, base model, title and the given `fields`.

    A base model on ModelScope is named only if `hub` is ModelScope: elsewhere, its name may be another repository's.
    """
    source = provenance.source
    base = source.name if source and source.revision else None
    if source and source.on_modelscope:
        base = source.on_modelscope if hub == "ms" else None
    return front_matter(
        ModelCardData,
        license=licence.identifier,
        license_name=licence.name,
        license_link=licence.link,
        base_model=base,
        model_name=card.title,
        library_name="transformers",
        **fields,
    )


def _duration(seconds: float) -> str:
    unit, size = next((unit for unit in (("hours", 3600), ("minutes", 60)) if seconds >= unit[1]), ("seconds", 1))
    return f"{seconds / size:,.1f} {unit}"


def training_of(checkpoint: Path) -> Training:
    """Returns how a run's checkpoint was trained; empty for any other folder."""
    try:
        saved = read_state(checkpoint)
    except ArtifactError:
        return Training()
    recipe = leaves({**asdict(saved.recipe), "held_out": None})
    settings = {name: str(value) for name, value in recipe if value is not None}
    if saved.precision and settings["precision"] == "auto":
        settings["precision"] = f"{number_format(saved.precision)} (auto)"
    return Training(settings, saved.state.training_seconds)


def datasets(rows: RowsManifest) -> list[str]:
    """Returns the datasets on the hub that the rows were made from, each once."""
    named = (source.dataset for source in rows.plan.sources if source.dataset and source.commit)
    return list(dict.fromkeys(named))


def author_lines(card: ReleaseCard | RowsCard) -> list[Markup]:
    """Returns the author's lines about the data, which may be Markdown."""
    return [author_markdown(single_line(line)) for line in card.data]


def languages(card: ReleaseCard, rows: RowsManifest) -> list[str]:
    """Returns the languages that the card names, or else those of the rows' sources."""
    return list(card.languages or dict.fromkeys(source.language for source in rows.plan.sources))


def corpora(rows: RowsManifest) -> list[str]:
    """Returns a line for each source of the rows: a dataset with its commit, or the names of files."""
    commits = (f", commit {source.commit}" if source.commit else "" for source in rows.plan.sources)
    names = map(name_of, rows.plan.sources)
    return [f"{name}{commit} (licence not stated)" for name, commit in zip(names, commits, strict=True)]
