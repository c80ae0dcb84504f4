"""The model card of a release: facts from the files of checkpoint, base model and rows, and README.md made of them."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from markupsafe import Markup

from longmlm.artifacts.accuracy import within_error
from longmlm.artifacts.evaluation import BLOCKS_PICTURE, RECOVERY_PICTURE, Evaluation
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.rows import RowsManifest
from longmlm.errors import (
    ArtifactError,
)
from longmlm.escaping import author_markdown, single_line
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address, CodeTemplate, LoadingCode
from longmlm.reports.evaluation import accuracy_table, explanation
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
    """What a model card states beyond its author's text; `name` is the released folder's.

    `carried` names parts of the base model that were not trained, `modules` the sentence-transformers modules. The
    first `num_global_tokens` of a text need a global_attention_mask of 1. The example in the code is in `language`.
    """

    name: str
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
    recovery = evaluation.recovery if evaluation else None
    if recovery and trained.exported_accuracy is not None and base_cut is not None:
        recovery = replace(recovery, points=trained.exported_accuracy - base_cut)
    text = render(
        "model_card.md",
        metadata=_metadata(card, facts, accuracy),
        card=card,
        languages=languages(card, facts.rows),
        facts=facts,
        codes={code.template: code.on_card(Address(facts.name)) for code in facts.codes},
        accuracy=accuracy,
        base_cut=base_cut,
        recovery=recovery,
        within_error=within_error(recovery),
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
