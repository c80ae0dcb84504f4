"""The page of the downstream command, and what the cards of its models say."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from markupsafe import Markup

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import finding, points
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.planned import TrialConfig
from longmlm.downstream.reading import windows_overlap
from longmlm.downstream.scores import main_score, metric_names
from longmlm.downstream.settings import LabelledData
from longmlm.errors import counted
from longmlm.escaping import markdown, markdown_code
from longmlm.reports.charts import Chart, Series
from longmlm.reports.pages import Head, Section, page, write_page
from longmlm.reports.tables import Table, markdown_table, percent
from longmlm.runtime.trials import values_in_words

BOUNDS = ("95 % low", "95 % high")


def write_downstream(comparison: DownstreamComparison, folder: Path, made_by: str) -> None:
    """Writes downstream.json and the page; `made_by` is the command with its settings."""
    write_page(downstream_page(comparison, made_by), folder / PAGE_FILE)
    artifact.write(folder / DownstreamComparison.FILE, comparison)


def downstream_page(comparison: DownstreamComparison, made_by: str) -> str:
    """Returns the page about a comparison of arms."""
    task, metric, arms = comparison.task, comparison.metric, comparison.arms
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    drawn = "of the documents and of the seeds" if len(seeds) > 1 else "of the documents, for one seed"
    corrected = f" Not corrected for {comparison.num_compared} comparisons." if comparison.num_compared > 1 else ""
    sections = [
        Section(
            "Arms",
            f"By {metric}, averaged over seeds. Low and high: 95 % interval of 2,000 bootstrap resamples {drawn}."
            f" The difference is that from the baseline, {task.baseline}.",
            arms_table(comparison),
        ),
        Section(f"{_capital(metric)} of each arm", "", _chart(comparison)),
        Section(
            f"Differences from {task.baseline}",
            "In percentage points, paired: both arms on the same documents and seeds. Where the interval includes "
            f"zero, no difference was found.{corrected}",
            differences_table(comparison),
        ),
        Section("By label", "F1 in percent.", _labels_table(comparison)),
        Section("Settings", "Values were chosen by the development score.", _settings_table(comparison)),
        Section(
            "Failed trials",
            "The same command tries them again.",
            Table(["trial", "error"], [*comparison.failed.items()]),
        ),
        Section("Documents", "", _facts(comparison, seeds)),
    ]
    sections = [one for one in sections if not (isinstance(one.content, Table) and not one.content.lines)]
    best = arms[0].differences
    is_good = False if comparison.failed else True if best and best[0].sign > 0 else None
    folds = f", cross-validation with {counted(task.num_folds, 'fold')}" if task.num_folds else ""
    tested = counted(arms[0].num_documents, "test document")
    lead = f"{_capital(task.kind)} of {tested}{folds}, {counted(len(seeds), 'seed')}."
    head = Head(f"{task.name}: comparison of {counted(len(arms), 'arm')}", lead, finding(comparison), is_good)
    return page(head, sections, made_by)


def arms_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its metrics, the main one with its interval, and its difference from the baseline."""
    main_name, *names = [f"{score.metric} (%)" for score in comparison.arms[0].scores]
    lines = []
    for arm in comparison.arms:
        main, *others = arm.scores
        difference = next(iter(arm.differences), None)
        compared = map(points, difference.numbers if difference else [None] * 3)
        lines.append([arm.arm, *map(percent, main.numbers), *compared, *(percent(score.mean) for score in others)])
    return Table(["arm", main_name, *BOUNDS, "difference", *BOUNDS, *names], lines)


def differences_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm and metric: the difference from the baseline with its interval."""
    verdicts, lines = {1: "better", -1: "worse", 0: "no difference found"}, []
    for arm in comparison.arms:
        for score in (score for score in arm.differences if score.mean is not None):
            verdict = "–" if score.low is None else verdicts[score.sign]
            lines.append([arm.arm, score.metric, *map(points, score.numbers), verdict])
    return Table(["arm", "metric", "points", *BOUNDS, "verdict"], lines)


def write_fine_tuned(
    folder: Path, config: TrialConfig, corpus: LabelledCorpus, trial: DownstreamTrial, num_tokens: int
) -> None:
    """Writes what a release of a trial's model needs; `num_tokens` is the longest input, 0 for TF-IDF."""
    kind, arm, tested = config.task.kind, config.arm, counted(len(trial.predictions), "test document")
    is_labelling, metric = kind == "labelling", metric_names(kind, corpus.is_multilabel)[0]
    has_windows = is_labelling and arm.reads == "chunks"
    score = main_score(trial.predictions, kind, corpus.is_multilabel)
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
            f"{_capital(metric)} on {tested} that it was not trained on: {score:.2f} %. One seed{fold}; "
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
    pairs = [(number, arm.scores[0]) for number, arm in enumerate(comparison.arms)]
    known = [(float(number), score) for number, score in pairs if score.mean is not None]
    values = [score.mean or 0.0 for _, score in known]
    ends = [(value, score.low or 0.0, score.high or 0.0) for value, (_, score) in zip(values, known, strict=True)]
    errors = [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]
    series = Series(comparison.metric, "blue", [number for number, _ in known], values, errors)
    titles = ("arm", f"{comparison.metric} (%)")
    return Chart("Means and 95 % intervals", titles, [series], "points", [arm.arm for arm in comparison.arms])


def _labels_table(comparison: DownstreamComparison) -> Table:
    lines = [[arm.arm, *(percent(score.mean, 1) for score in arm.by_label)] for arm in comparison.arms]
    return Table(["arm", *comparison.task.labels], lines)


def _settings_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its model, what it reads, how chunks are pooled, and the values chosen for it."""
    lines = []
    for result in comparison.arms:
        arm = comparison.task.arms[result.arm]
        unit = "tokens" if arm.model else "words or characters"
        length = f"{arm.length:,} {unit}" if arm.length else ("all positions" if arm.model else "all")
        is_pooled = arm.reads == "chunks" and comparison.task.kind == "classification"
        trained = "–" if not arm.model else "head" if arm.frozen else "all"
        cells = [arm.model or "TF-IDF", arm.reads, length, arm.pooling if is_pooled else "–", trained]
        lines.append([result.arm, *cells, values_in_words(result.values)])
    return Table(["arm", "model", "reads", "length", "pooling", "trained", "chosen values"], lines)


def _facts(comparison: DownstreamComparison, seeds: Sequence[int]) -> dict[str, str]:
    task = comparison.task
    untested = f"{comparison.num_untested:,}, since no training document has all of their labels"
    return {
        "documents": f"{task.num_documents:,}",
        "records set aside": f"{task.num_set_aside:,}",
        "labels": f"{len(task.labels):,}{', several per document' if task.is_multilabel else ''}",
        "folds": f"{task.num_folds}, every document in one test set per seed" if task.num_folds else "one split",
        **({"not tested": untested} if comparison.num_untested else {}),
        "seeds": ", ".join(map(str, seeds)),
        "documents tested": f"{comparison.arms[0].num_documents:,}",
    }


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


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
