"""The page of the downstream command, and what the cards of its models say."""

from dataclasses import asdict, replace
from pathlib import Path

from markupsafe import Markup

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import finding, points
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.reading import windows_overlap
from longmlm.downstream.scores import METRICS, main_score
from longmlm.downstream.settings import LabelledData
from longmlm.errors import counted
from longmlm.escaping import markdown, markdown_code
from longmlm.experiments.experiment import experiment_page, title_of, values_in_words
from longmlm.reports.charts import Chart, Series
from longmlm.reports.pages import Head, Section
from longmlm.reports.tables import Table, markdown_table, percent

BOUNDS = ("95 % low", "95 % high")
KINDS = {"label": "Classification", "labels": "Classification", "spans": "Labelling"}


def downstream_page(comparison: DownstreamComparison, made_by: str) -> str:
    """Returns the page about a comparison of arms."""
    task, metric, arms = comparison.task, comparison.metric, comparison.arms
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    drawn = "of the documents and of the seeds" if len(seeds) > 1 else "of the documents, for one seed"
    several = f" Not corrected for {comparison.num_compared} comparisons." if comparison.num_compared > 1 else ""
    about = (
        f"By {metric}, averaged over seeds. Low and high: 95 % interval of 2,000 bootstrap resamples {drawn}. The "
        f"difference is that from the baseline, {task.baseline}, on the same documents and seeds; where its interval "
        f"includes zero, no difference was found.{several}"
    )
    sections = [
        Section("Arms", about, arms_table(comparison)),
        Section(f"{metric} of each arm", "", _chart(comparison)),
        Section("By label", "F1 in percent.", _labels_table(comparison)),
    ]
    best = arms[0].differences
    is_good = False if comparison.failed else True if best and best[0].sign > 0 else None
    folds = f", cross-validation with {counted(task.num_folds, 'fold')}" if task.num_folds else ""
    tested, aside = counted(arms[0].num_documents, "test document"), counted(task.num_set_aside, "record")
    untested = (
        f" {counted(comparison.num_untested, 'document')} not tested: no training document has all of the labels."
    )
    lead = (
        f"{KINDS[task.target]} of {tested}{folds}, {counted(len(seeds), 'seed')}. "
        f"{counted(task.num_documents, 'document')}, {counted(len(task.labels), 'label')}; {aside} set aside."
        f"{untested if comparison.num_untested else ''}"
    )
    head = Head(title_of(task.name, len(arms)), lead, finding(comparison), is_good)
    return experiment_page(head, sections, comparison.failed, made_by)


def arms_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its metrics, the main one with its interval, and its difference from the baseline."""
    main_name, *names = [f"{score.metric} (%)" for score in comparison.arms[0].scores]
    lines = []
    for arm in comparison.arms:
        main, *others = arm.scores
        difference = next(iter(arm.differences), None)
        compared = map(points, difference.numbers if difference else [None] * 3)
        numbers = [*map(percent, main.numbers), *compared, *(percent(score.mean) for score in others)]
        lines.append([arm.arm, values_in_words(arm.values), *numbers])
    return Table(["arm", "chosen values", main_name, *BOUNDS, "difference", *BOUNDS, *names], lines)


def write_fine_tuned(
    folder: Path, config: TrialConfig, corpus: LabelledCorpus, trial: DownstreamTrial, num_tokens: int
) -> None:
    """Writes what a release of a trial's model needs; `num_tokens` is the longest input, 0 for TF-IDF."""
    arm, is_labelling, metric = config.arm, corpus.target == "spans", METRICS[corpus.target][0]
    has_windows = is_labelling and arm.reads == "chunks"
    score, tested = main_score(trial.predictions, corpus), counted(len(trial.predictions), "test document")
    fold = f", one fold of {config.task.num_folds}" if config.task.num_folds else ""
    settings = {**trial.values, "seed": trial.seed, **asdict(config.recipe)}
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
        training=markdown_table(Table(["setting", "value"], [[name, str(value)] for name, value in settings.items()])),
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


def _chart(comparison: DownstreamComparison) -> Chart:
    """Returns the main metric of every arm with its interval."""
    known = [(float(n), score) for n, arm in enumerate(comparison.arms) if (score := arm.scores[0]).mean is not None]
    values = [score.mean or 0.0 for _, score in known]
    ends = [(value, score.low or 0.0, score.high or 0.0) for value, (_, score) in zip(values, known, strict=True)]
    errors = [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]
    series = Series(comparison.metric, "blue", [number for number, _ in known], values, errors)
    titles = ("arm", f"{comparison.metric} (%)")
    return Chart("Means and 95 % intervals", titles, [series], "points", [arm.arm for arm in comparison.arms])


def _labels_table(comparison: DownstreamComparison) -> Table:
    lines = [[arm.arm, *(percent(score.mean, 1) for score in arm.by_label)] for arm in comparison.arms]
    return Table(["arm", *comparison.task.labels], lines)


def _about(config: TrialConfig, corpus: LabelledCorpus) -> Markup:
    model, arm = str(config.arm.model), config.arm
    task = "sequence labelling" if corpus.target == "spans" else "document classification"
    training = "fine-tuned with longmlm"
    if arm.frozen:
        training = "with a new head, trained with longmlm on the unchanged encoder,"
    base = markdown_code(model if arm.revision else Path(model).name)
    return Markup("{}, {} for {}: {}.").format(base, training, task, markdown(", ".join(corpus.labels)))


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
