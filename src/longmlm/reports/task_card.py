"""The model card of a released fine-tuned model."""

from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub import EvalResult
from markupsafe import Markup

from longmlm.artifacts.downstream import DownstreamComparison, DownstreamTrial
from longmlm.artifacts.provenance import Provenance
from longmlm.errors import counted
from longmlm.hubs.licences import Licence
from longmlm.reports.card_code import Address, LoadingCode
from longmlm.reports.downstream import arms_table
from longmlm.reports.model_card import author_lines, metadata
from longmlm.reports.pages import render
from longmlm.reports.tables import Table, markdown_table
from longmlm.scoring.scores import main_metric, main_score
from longmlm.settings.downstream import HEAD_TOKENS, Arm, DownstreamTrialConfig, TaskKind
from longmlm.settings.release import ReleaseCard

PIPELINE_TASKS: Mapping[TaskKind, str] = {
    "classification": "text-classification",
    "labelling": "token-classification",
    "similarity": "sentence-similarity",
}


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the card states beyond its author's text; `num_tokens` is the longest input, special tokens included.

    Its code loads the model from `address`.
    """

    address: Address
    provenance: Provenance
    config: DownstreamTrialConfig
    trial: DownstreamTrial
    comparison: DownstreamComparison | None
    licence: Licence
    num_tokens: int
    labels: tuple[str, ...]
    is_multilabel: bool
    language: str = "en"

    @property
    def code(self) -> LoadingCode:
        """The code on the card; a pipeline would silently cut a long text of an arm that reads chunks."""
        task = PIPELINE_TASKS[self.config.task.kind]
        if task == "sentence-similarity":
            return LoadingCode("load_sentences.md", language=self.language)
        stride = (self.num_tokens - 2) // 2 if self.config.arm.reads == "chunks" else None
        return LoadingCode("load_task.md", task, stride, self.language)


def task_card(card: ReleaseCard, facts: TaskFacts) -> str:
    """Returns README.md."""
    kind, trial, comparison = facts.config.task.kind, facts.trial, facts.comparison
    score, metric = main_score(trial.predictions, kind, facts.is_multilabel), main_metric(kind, facts.is_multilabel)
    settings = [*facts.trial.values.items(), ("seed", trial.seed), *_settings(facts)]
    text = render(
        "task_card.md",
        metadata=_metadata(card, facts, metric, score),
        card=card,
        facts=facts,
        code=facts.code.on_card(facts.address),
        base=_base(facts),
        task_name={"classification": "document classification", "labelling": "sequence labelling"}.get(kind, kind),
        reading=reading(facts.config.arm, facts.num_tokens),
        metric=metric[0].upper() + metric[1:],
        score=score,
        num_tested=counted(len(trial.predictions), f"test {facts.config.task.noun}"),
        arms_table=comparison and markdown_table(arms_table(comparison)),
        baseline=comparison and comparison.task.baseline,
        settings_table=markdown_table(Table(["setting", "value"], [[name, str(value)] for name, value in settings])),
        data=author_lines(card) or _data(facts),
    )
    return str(text)


def reading(arm: Arm, num_tokens: int) -> str:
    """Returns in words what the model read of a document in training and in tests."""
    other = "Cut longer texts in the same way before prediction."
    match arm.reads:
        case "first" | "last":
            return f"It reads the {arm.reads} {num_tokens:,} tokens of a text, special tokens included."
        case "head-tail":
            last = num_tokens - 2 - HEAD_TOKENS
            return f"It was trained on the first {HEAD_TOKENS} and the last {last:,} tokens of each document. {other}"
        case "chunks":
            return (
                f"It reads longer texts in chunks of {num_tokens:,} tokens that overlap by half. For the scores, the "
                "chunk in which a token is most central decides; the pipeline above merges chunks in its own way."
            )
        case _:
            return f"It was trained on the {arm.reads} {num_tokens:,} tokens of each document. {other}"


def _base(facts: TaskFacts) -> str:
    source = facts.provenance.started_from
    return source.public_name if source else str(facts.config.arm.model)


def _settings(facts: TaskFacts) -> list[tuple[str, object]]:
    recipe, trained = facts.config.recipe, facts.provenance.trained if facts.trial.values else None
    names = ("documents_per_step", "warmup_fraction", "patience", "weight_decay", "dropout")
    precision = trained.precision if trained and trained.precision else recipe.precision
    settings = [*((name, getattr(recipe, name)) for name in names), ("precision", precision)]
    return [(name, value) for name, value in settings if value is not None]


def _data(facts: TaskFacts) -> list[str]:
    return [f"{name} (licence not stated)" for name in _names(facts)]


def _names(facts: TaskFacts) -> list[str]:
    data = facts.config.task.data
    return [data.dataset] if data.dataset else [name_in_words(name) for name in data.files]


def name_in_words(path: str) -> str:
    """Returns the name of a file; of a pattern such as news/*.jsonl, also that of its folder."""
    *folders, name = path.split("/")
    return "/".join([*folders[-1:], name]) if "*" in name else name


def _metadata(card: ReleaseCard, facts: TaskFacts, metric: str, score: float) -> Markup:
    task = PIPELINE_TASKS[facts.config.task.kind]
    result = EvalResult(
        task_type=task,
        dataset_type="test-documents",
        dataset_name=f"test documents of {', '.join(card.data) or ', '.join(_names(facts))}",
        metric_type=metric.replace(" ", "_").lower(),
        metric_name=f"{metric} (%)",
        metric_value=round(score, 2),
    )
    return metadata(
        card,
        facts.licence,
        facts.provenance,
        language=list(card.languages) or None,
        library_name="sentence-transformers" if task == "sentence-similarity" else "transformers",
        pipeline_tag=task,
        tags=["long-context"] if facts.provenance.extension else None,
        eval_results=[result],
    )
