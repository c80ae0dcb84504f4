"""What the card of a trial's model says, written beside the model for a release."""

from dataclasses import asdict, replace
from pathlib import Path

from markupsafe import Markup

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.page import arms_table
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.reading import windows_overlap
from longmlm.downstream.scores import main_score, metric_names
from longmlm.downstream.settings import LabelledData
from longmlm.errors import counted
from longmlm.escaping import markdown, markdown_code
from longmlm.reports.tables import Table, markdown_table


def write_fine_tuned(
    folder: Path, config: TrialConfig, corpus: LabelledCorpus, trial: DownstreamTrial, num_tokens: int
) -> None:
    """Writes what a release of a trial's model needs; `num_tokens` is the longest input, 0 for TF-IDF."""
    kind, arm = config.task.kind, config.arm
    is_labelling, has_windows = kind == "labelling", kind == "labelling" and arm.reads == "chunks"
    metric = metric_names(kind, corpus.is_multilabel)[0]
    score = main_score(trial.predictions, kind, corpus.is_multilabel)
    tested = counted(len(trial.predictions), "test document")
    fold = f", one fold of {config.task.num_folds}" if config.task.num_folds else ""
    settings = {**trial.values, "seed": trial.seed, **asdict(config.recipe)}
    lines = [[name, str(value)] for name, value in settings.items() if value is not None]
    content = FineTuned(
        auto_class="AutoModelForTokenClassification" if is_labelling else "AutoModelForSequenceClassification",
        num_tokens=num_tokens,
        truncation_side="left" if arm.reads == "last" else "right",
        stride=windows_overlap(num_tokens) if has_windows else None,
        labels=corpus.labels,
        metric=metric,
        score=score,
        data=tuple(_names(config.task.data)),
        about=_about(config, corpus),
        reading=(
            f"It reads longer texts in windows of {num_tokens:,} tokens that overlap by half. The pipeline above "
            "merges them, as it did for the scores."
            if has_windows
            else f"It reads the {arm.reads} {num_tokens:,} tokens of a text, special tokens included."
        ),
        scores=(
            f"{metric[0].upper()}{metric[1:]} on {tested} that it was not trained on: {score:.2f} %. One seed{fold}; "
            "the epoch was chosen on development documents."
        ),
        training=markdown_table(Table(["setting", "value"], lines)),
        problem=_problem(config),
    )
    artifact.write(folder / FineTuned.FILE, content)


def add_comparison(folder: Path, comparison: DownstreamComparison | None) -> None:
    """Puts the comparison of all arms into what the card of a trial says; None for a trial that is not part of it."""
    text = Markup("")
    if comparison:
        baseline = markdown_code(comparison.task.baseline)
        heading = Markup("All arms, with 95 % intervals; differences are to {}, in points:").format(baseline)
        text = Markup("{}\n\n{}").format(heading, markdown_table(arms_table(comparison)))
    file = folder / FineTuned.FILE
    artifact.write(file, replace(artifact.read(FineTuned, file), comparison=text))


def _about(config: TrialConfig, corpus: LabelledCorpus) -> Markup:
    model, arm = str(config.arm.model), config.arm
    task = "document classification" if config.task.kind == "classification" else "sequence labelling"
    tuned = (
        "with a new head, trained with longmlm on the unchanged encoder," if arm.frozen else "fine-tuned with longmlm"
    )
    base = markdown_code(model if arm.revision else Path(model).name)
    return Markup("{}, {} for {}: {}.").format(base, tuned, task, markdown(", ".join(corpus.labels)))


def _problem(config: TrialConfig) -> str:
    if config.arm.model is None:
        return "TF-IDF is not a transformers model and cannot be released: release another arm"
    if config.task.kind == "classification" and config.arm.reads == "chunks":
        return "no class of transformers pools the vectors of chunks: release an arm that reads one input"
    return ""


def _names(data: LabelledData) -> list[str]:
    """Returns the dataset or the names of the files; of a pattern such as news/*.jsonl, also that of its folder."""
    if data.dataset:
        return [data.dataset]
    paths = [path.rsplit("/", 2) for path in data.files]
    return ["/".join(parts[-2:]) if "*" in parts[-1] else parts[-1] for parts in paths]
