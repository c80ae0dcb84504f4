"""The model card of a release: facts from the files of checkpoint, base model and rows, and README.md made of them."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from markupsafe import Markup

from longmlm.artifacts.accuracy import within_error
from longmlm.artifacts.evaluation import BLOCKS_PICTURE, RECOVERY_PICTURE, Evaluation
from longmlm.artifacts.provenance import ModelSource, Provenance, TrainingRecord
from longmlm.artifacts.rows import RowsManifest
from longmlm.errors import (
    ArtifactError,
    counted,
)
from longmlm.escaping import author_markdown, markdown, markdown_code, markup, single_line
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address, CodeTemplate, LoadingCode
from longmlm.reports.evaluation import accuracy_table, explanation, short_text_finding
from longmlm.reports.packing import name_of, packing_table
from longmlm.reports.pages import front_matter, render
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.prepare import RowsCard
from longmlm.settings.pretrain import number_format
from longmlm.settings.release import ReleaseCard
from longmlm.training.run_folder import read_state


@dataclass(frozen=True, slots=True)
class Training:
    """How a checkpoint was trained, as far as known: its settings by name, seconds, and the base model's accuracy."""

    settings: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    base_cut: float | None = None


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
    def codes(self) -> tuple[LoadingCode, ...]:
        """The code on the card: for the MLM model, and for sentence vectors and ONNX files if it has them."""
        has: dict[CodeTemplate, bool] = {
            "load_longformer.md": self.num_global_tokens > 0,
            "load_model.md": not self.num_global_tokens,
            "load_sentences.md": bool(self.modules),
            "load_onnx.md": self.has_onnx,
        }
        return tuple(LoadingCode(template, language=self.language) for template, is_there in has.items() if is_there)


def model_card(card: ReleaseCard, facts: CardFacts) -> str:
    """Returns README.md."""
    evaluation, training, trained = facts.evaluation, facts.training, facts.provenance.trained
    assert trained is not None  # checked before a release
    accuracy = trained.exported_accuracy
    if accuracy is None:
        accuracy = evaluation.accuracy("long_after") if evaluation else trained.accuracy
    base_cut = evaluation.accuracy("base_cut") if evaluation else training.base_cut
    text = render(
        "model_card.md",
        metadata=_metadata(card, facts, accuracy),
        card=card,
        languages=languages(card, facts.rows),
        facts=facts,
        lead=_lead(facts.provenance),
        codes={code.template: code.on_card(facts.address) for code in facts.codes},
        accuracy=accuracy,
        base_cut=base_cut,
        findings=[] if accuracy is None or base_cut is None else _findings(facts, accuracy, base_cut),
        explanation=evaluation and explanation(evaluation),
        accuracy_table=evaluation and markdown_table(accuracy_table(evaluation)),
        blocks_picture=BLOCKS_PICTURE,
        recovery_picture=RECOVERY_PICTURE,
        duration=_duration(training.seconds) if training.seconds else "",
        settings_table=markdown_table(Table(["setting", "value"], list(training.settings.items()))),
        corpora=author_lines(card) or corpora(facts.rows),
        packing_table=markdown_table(packing_table(facts.rows.report)),
    )
    return str(text)


def _lead(provenance: Provenance) -> Markup:
    """Returns in a sentence or two what the model was made from and trained on."""
    trained, extension, added = provenance.trained, provenance.extension, provenance.added_tokens
    assert trained is not None
    source = added.base if added else provenance.started_from
    if extension:
        made = (
            f"{_named(extension.base)}, extended from {extension.base_positions} trained positions to "
            f"{extension.num_positions} with longmlm ({markdown(extension.description)}), then pretrained"
        )
    else:
        made = (
            f"{_named(source)}, pretrained further with longmlm" if source else "Pretrained from scratch with longmlm"
        )
    lead = f"{made} on rows of {trained.row_length} tokens: {_amount(trained, ', ')}"
    lead += "".join(f", after {_amount(earlier, ' on ')} in an earlier run" for earlier in provenance.trained_before)
    tokens = f" {counted(added.num_added, 'new token')} for domain terms in its vocabulary." if added else ""
    return markup(f"{lead}.{tokens}")


def _named(source: ModelSource) -> str:
    revision = f" (revision {markdown(source.revision)})" if source.revision else ""
    return f"{markdown_code(source.public_name)}{revision}"


def _amount(trained: TrainingRecord, between: str) -> str:
    return f"{counted(trained.steps, 'step')}{between}{counted(trained.tokens, 'token')}"


def _findings(facts: CardFacts, accuracy: float, base_cut: float) -> list[Markup]:
    """Returns whether the base model's accuracy was recovered, and what became of short texts; in bold what is bad."""
    evaluation, findings = facts.evaluation, []
    recovery = evaluation.recovery if evaluation else None
    if recovery and facts.provenance.trained and facts.provenance.trained.exported_accuracy is not None:
        recovery = replace(recovery, points=accuracy - base_cut)
    if accuracy < base_cut:
        compared = f"; its accuracy is {recovery.compared_with('that of the base model')}" if recovery else ""
        text = (
            f"Not recovered{within_error(recovery)}: on whole rows this model predicts fewer masked tokens correctly "
            f"than its base model on rows cut to the base model's length{compared}."
        )
        findings.append(markup(f"**{markdown(text)}**"))
    elif recovery and facts.provenance.extension:
        compared = recovery.compared_with("that of the base model on rows cut to the base model's length")
        findings.append(markdown(f"Recovered{within_error(recovery)}: on whole rows the accuracy is {compared}."))
    if evaluation and (short := short_text_finding(evaluation)):
        findings.append(markup(f"**{markdown(short)}**") if evaluation.is_worse_on_short_texts else markdown(short))
    return findings


def _duration(seconds: float) -> str:
    unit, size = next((unit for unit in (("hours", 3600), ("minutes", 60)) if seconds >= unit[1]), ("seconds", 1))
    return f"{seconds / size:,.1f} {unit}"


def _metadata(card: ReleaseCard, facts: CardFacts, accuracy: float | None) -> Markup:
    result = accuracy is not None and EvalResult(
        task_type="fill-mask",
        dataset_type="held-out-rows",
        dataset_name=f"held-out documents of {', '.join(card.data) or 'the corpus'}",
        metric_type="accuracy",
        metric_name="masked-token accuracy (%)",
        metric_value=round(accuracy, 2),
    )
    return metadata(
        card,
        facts.licence,
        facts.provenance,
        language=languages(card, facts.rows),
        library_name="transformers",
        pipeline_tag="fill-mask",
        datasets=datasets(facts.rows) or None,
        tags=[
            "masked-lm",
            *(["long-context"] if facts.provenance.extension else []),
            *(["sentence-transformers"] if facts.modules else []),
        ],
        eval_results=[result] if result else None,
    )


def metadata(card: ReleaseCard, licence: Licence, provenance: Provenance, **fields: Any) -> Markup:
    """Returns the card's YAML metadata for hubs: licence, base model, title and the given `fields`."""
    source = provenance.source
    return front_matter(
        ModelCardData,
        license=licence.identifier,
        license_name=licence.name,
        license_link=licence.link,
        base_model=source.name if source and source.revision else None,
        model_name=card.title,
        **fields,
    )


def training_of(checkpoint: Path) -> Training:
    """Returns how a run's checkpoint was trained; empty for any other folder."""
    try:
        saved = read_state(checkpoint)
    except ArtifactError:
        return Training()
    settings = dict(_flat({**asdict(saved.recipe), "held_out": None}))
    if saved.precision and settings["precision"] == "auto":
        settings["precision"] = f"{number_format(saved.precision)} (auto)"
    return Training(settings, saved.state.training_seconds, saved.state.base_cut)


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, str(value)


def datasets(rows: RowsManifest) -> list[str]:
    """Returns the datasets on the hub that the rows were made from, each once."""
    named = (source.dataset for source in rows.plan.sources if source.dataset and source.commit)
    return list(dict.fromkeys(named))


def author_lines(card: ReleaseCard | RowsCard) -> list[Markup]:
    """Returns the author's lines about the data, which may be Markdown."""
    return [author_markdown(single_line(line)) for line in card.data]


def languages(card: ReleaseCard, rows: RowsManifest) -> list[str]:
    """Returns the languages that the card names, or else those of the rows' sources."""
    return list(card.languages) or list(dict.fromkeys(source.language for source in rows.plan.sources))


def corpora(rows: RowsManifest) -> list[str]:
    """Returns a line for each source of the rows: a dataset with its commit, or the names of files."""
    commits = (f", commit {source.commit}" if source.commit else "" for source in rows.plan.sources)
    names = map(name_of, rows.plan.sources)
    return [f"{name}{commit} (licence not stated)" for name, commit in zip(names, commits, strict=True)]
