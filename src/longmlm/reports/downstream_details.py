"""Details of a comparison of arms: by label, distance, seed; settings and search; explanations of single documents."""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from longmlm.artifacts.downstream import ArmResult, DownstreamComparison, Explanation, Score, SpanOutcome
from longmlm.reports.charts import PALETTE, Chart, Colour, Series
from longmlm.reports.pages import Section, WeightedText
from longmlm.reports.tables import Table, percent
from longmlm.runtime.trials import values_in_words
from longmlm.scoring.scores import CUT_STARTS, bin_names, position_starts, recall_beyond

MAX_SPANS = 40  # that are shown
INTERVALS = "With 95 % intervals; bins whose entities are all of one document have none and are left out."


def position_sections(comparison: DownstreamComparison) -> list[Section]:
    """Returns the sections about where in a document entities are found."""
    drawn = _drawn(comparison)
    more = f" The charts show {len(drawn)} arms." if len(drawn) < len(comparison.arms) else ""
    length, starts = comparison.length, position_starts(comparison.length)
    into = _binned(comparison, "tokens into the document", bin_names(starts), lambda arm: arm.by_position)
    cut = _binned(comparison, "tokens from a cut", bin_names(CUT_STARTS), lambda arm: arm.by_cut)
    text = f"F1 of the entities that begin there, in percent; tokens are those of the baseline's tokenizer.{more}"
    sections = [Section("By distance into the document", text, into[0])]
    if into[1].series:
        sections.append(Section("F1 by distance into the document", INTERVALS, into[1]))
    if cut[1].series:
        text = (
            "Tokens from the nearest place where the arm's input, or its chunk that decides for the entity, is cut out "
            "of the document. Chunks overlap by half, so that no decision is made close to their cuts. Entities in "
            "inputs that are not cut, and those that the arm does not read, are left out. F1 in percent."
        )
        sections.append(Section("By distance from a cut", text, cut[0]))
        sections.append(Section("F1 by distance from a cut", INTERVALS, cut[1]))
    return [*sections, Section(f"Entities beyond token {length:,}", "", beyond_table(comparison))]


def beyond_table(comparison: DownstreamComparison) -> Table:
    """Returns, per arm, the share of the true entities beyond an input of the baseline that it found."""
    name = recall_beyond(comparison.length)
    by_arm = [(arm.arm, next(score for score in arm.scores if score.metric == name)) for arm in comparison.arms]
    lines = [[name, *(percent(value, 1) for value in (score.mean, score.low, score.high))] for name, score in by_arm]
    return Table(["arm", "found (%)", "95 % low", "95 % high"], lines)


def label_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per label with its F1 in every arm."""
    by_arm = [{score.metric: score.mean for score in arm.by_label} for arm in comparison.arms]
    lines = [[label, *(percent(means[label], 1) for means in by_arm)] for label in comparison.task.labels]
    return Table(["label", *(arm.arm for arm in comparison.arms)], lines)


def seed_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm with its main metric for every seed."""
    seeds = sorted({seed for arm in comparison.arms for seed in arm.seeds})
    lines = []
    for arm in comparison.arms:
        values = dict(zip(arm.seeds, arm.by_seed, strict=True))
        lines.append([arm.arm, *(percent(values.get(seed), 1) for seed in seeds)])
    return Table(["arm", *(f"seed {seed}" for seed in seeds)], lines)


def settings_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its model, what it reads, how chunks are pooled, and the values chosen for it."""
    lines = []
    for result in comparison.arms:
        arm = comparison.task.arms[result.arm]
        unit = "tokens" if arm.model else "words or characters"
        length = f"{arm.length:,} {unit}" if arm.length else ("all positions" if arm.model else "all")
        reads = arm.reads if arm.model else "first" if arm.length else "all"
        is_pooled = arm.reads == "chunks" and comparison.task.kind == "classification"
        pooling = arm.pooling if is_pooled else "–"
        trained = "–" if not arm.is_trained(comparison.task.kind) else "head" if arm.frozen else "all"
        name, values = arm.model or "TF-IDF", values_in_words(result.values)
        lines.append([result.arm, name, reads, length, pooling, trained, values])
    return Table(["arm", "model", "reads", "length", "pooling", "trained", "chosen values"], lines)


def search_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm and choice of values with its development score, if it is trained."""
    task = comparison.task
    untrained = {name for name, arm in task.arms.items() if arm.model and not arm.is_trained(task.kind)}
    lines = [
        [
            arm.arm,
            values_in_words(tried.values),
            percent(None if arm.arm in untrained else tried.dev_score, 1),
        ]
        for arm in comparison.arms
        for tried in arm.searched
    ]
    return Table(["arm", "values", "development score (%)"], lines)


def explained_texts(comparison: DownstreamComparison) -> list[WeightedText]:
    """Returns the documents that the best arm and the baseline explain, each with the effects of its parts."""
    shown = [arm for arm in comparison.arms if arm.arm == comparison.task.baseline or arm is comparison.arms[0]]
    pairs = [(arm, one) for arm in shown for one in arm.explanations if one.parts]
    order = list(dict.fromkeys(one.document for _, one in pairs))
    pairs.sort(key=lambda pair: order.index(pair[1].document))
    return [
        WeightedText(
            f"{one.document}, {arm.arm}",
            f"predicted: {_predicted(one)}, actual label: {', '.join(one.labels) or 'none'}",
            [(part.excerpt, part.effect if part.is_read else None) for part in one.parts],
        )
        for arm, one in pairs
    ]


def _predicted(one: Explanation) -> str:
    labels = f"{', '.join(one.predicted)} ({one.probability or 0:.1f} %)"
    return labels if one.is_predicted else f"none, likeliest: {labels}"


def explained_spans_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per entity beyond an input of the baseline: what each arm made of it.

    If there are too many, documents have about as many lines each.
    """
    explained = {arm.arm: {one.document: one for one in arm.explanations} for arm in comparison.arms}
    documents = list(dict.fromkeys(document for of_arm in explained.values() for document in of_arm))
    by_document = [
        _span_lines(document, {arm: found.get(document) for arm, found in explained.items()}, comparison)
        for document in documents
    ]
    in_turn = [line for lines in zip_longest(*by_document) for line in lines if line]
    shown = sorted(in_turn[:MAX_SPANS], key=lambda line: documents.index(line[3]))
    return Table(["entity", "label", "token", "document", *explained], shown)


def _span_lines(
    document: str, explained: Mapping[str, Explanation | None], comparison: DownstreamComparison
) -> list[list[str]]:
    """Returns the lines of a document; tokens are those of the baseline, or else of another arm that explains it."""
    spans = {arm: one.spans if one else () for arm, one in explained.items()}
    has_starts = all(span.start >= 0 for of_arm in spans.values() for span in of_arm)  # not in an earlier version

    def key_of(span: SpanOutcome) -> tuple[int, str, str]:
        return span.start if has_starts else span.token, span.label, span.text

    outcomes = {arm: {key_of(span): span for span in of_arm} for arm, of_arm in spans.items()}
    baseline_last = sorted(outcomes, key=lambda arm: arm == comparison.task.baseline)
    tokens = {key: span.token for arm in baseline_last for key, span in outcomes[arm].items()}
    lines = []
    for key in sorted(key for key, token in tokens.items() if token >= comparison.length):
        found = [of_arm.get(key) for of_arm in outcomes.values()]
        words = ["–" if s is None else "found" if s.is_found else "missed" if s.is_read else "not read" for s in found]
        lines.append([key[2], key[1], f"{tokens[key]:,}", document, *words])
    return lines


def _binned(
    comparison: DownstreamComparison, title: str, names: Sequence[str], of: Callable[[ArmResult], Sequence[Score]]
) -> tuple[Table, Chart]:
    """Returns F1 by bins that have an entity, as a table of all arms and as a chart of some.

    The chart leaves out bins without an interval, whose entities are all of one document.
    """
    by_arm = {arm.arm: {score.metric: score for score in of(arm)} for arm in comparison.arms}
    kept = [name for name in names if any(scores[name].mean is not None for scores in by_arm.values())]
    lines = [[arm, *(percent(scores[name].mean, 1) for name in kept)] for arm, scores in by_arm.items()]
    drawn = [name for name in kept if any(scores[name].low is not None for scores in by_arm.values())] or kept
    series = []
    for arm, colour in _drawn(comparison):
        scores = [(float(x), by_arm[arm.arm][name]) for x, name in enumerate(drawn)]
        series += interval_series(arm.arm, colour, scores)
    return Table(["arm", *kept], lines), Chart("F1 of entities", (title, "F1 (%)"), series, "points", drawn)


def interval_series(name: str, colour: Colour, scores: Sequence[tuple[float, Score]]) -> list[Series]:
    """Returns the series of the scores that have a mean, each with its place, or nothing if none has."""
    known = [(x, score) for x, score in scores if score.mean is not None]
    values, intervals = [score.mean or 0.0 for _, score in known], [score.interval for _, score in known]
    return [Series(name, colour, [x for x, _ in known], values, intervals=intervals)] if known else []


def _drawn(comparison: DownstreamComparison) -> list[tuple[ArmResult, Colour]]:
    """Returns the baseline and the best of the other arms, as many as there are colours."""
    baseline = comparison.task.baseline
    drawn: list[tuple[ArmResult, Colour]] = [(arm, "faint") for arm in comparison.arms if arm.arm == baseline]
    others = [arm for arm in comparison.arms if arm.arm != baseline]
    return [*drawn, *zip(others, PALETTE, strict=False)]
