"""What the longer context is worth: accuracies in chunks and in whole rows, by where else a masked token occurs."""

from collections.abc import Mapping

from longmlm.artifacts.accuracy import (
    CHUNK,
    NOWHERE,
    ROW,
    Accuracy,
    Difference,
    Grouping,
    chunk_content,
    group_names,
    group_starts,
)
from longmlm.artifacts.evaluation import Evaluation, ViewName
from longmlm.reports.charts import Chart, Colour, accuracy_series
from longmlm.reports.pages import Section, public_path
from longmlm.reports.tables import Table, accuracy_text, difference_text

CONTEXT_VIEWS: dict[ViewName, Colour] = {"base_chunks": "amber", "long_after": "blue"}
GROUPED_BY: dict[Grouping, str] = {
    "position": "position in the row",
    "offset": "tokens into the document",
    "occurrence": "other occurrence of the token",
    "distance": "tokens to its nearest other occurrence",
}
OCCURRENCE = {CHUNK: "in its chunk", ROW: "only beyond its chunk", NOWHERE: "none"}
MEANING = (
    "A masked token has another occurrence if the same token is visible elsewhere in its row, or in its document if "
    "the long model reads each document by itself. A chunk is what the base model reads at a time."
)


def context_sections(evaluation: Evaluation) -> list[Section]:
    """Returns the tables and the chart of what the longer context gains; none without both accuracies."""
    if not evaluation.gains:
        return []
    text = (
        f"{context_sentence(evaluation)} {MEANING} All columns are on the same tokens; the gain is paired by row, and "
        "includes adaptation to the corpus."
    )
    return [
        Section("What the longer context is worth", text, gains_table(evaluation, "occurrence")),
        Section(
            "By distance to the nearest other occurrence",
            "Error bars show two standard errors. No chunk spans the distances on the right of the line.",
            distance_chart(evaluation),
        ),
        Section(
            "By offset in the document",
            "The offset is counted from the start of the document in the row.",
            gains_table(evaluation, "offset"),
        ),
    ]


def context_sentence(evaluation: Evaluation) -> str:
    """Returns in words what the longer context gains for tokens with another occurrence only beyond their chunk."""
    base, long = (evaluation.measured[view].groups["occurrence"] for view in CONTEXT_VIEWS)
    chunks, rows, gain = base[ROW], long[ROW], evaluation.gains["occurrence"][ROW]
    if gain is None or chunks.accuracy is None or rows.accuracy is None:
        return "Hardly any masked token has another occurrence only beyond its chunk."
    share = 100 * rows.num_selected / sum(one.num_selected for one in long.values())
    compared = gain.compared_with(f"the base model's {chunks.accuracy:.2f} % in chunks")
    return (
        f"Of the tokens with another occurrence only beyond their chunk ({share:.1f} % of all), the long model "
        f"predicts {rows.accuracy:.2f} % correctly, {compared}."
    )


def context_finding(evaluation: Evaluation) -> str:
    """Returns in words what the longer context gains on all tokens; empty if it was not measured."""
    gain, chunks = evaluation.difference("long_after", "base_chunks"), evaluation.accuracy("base_chunks")
    if gain is None or chunks is None:
        return ""
    base = public_path(evaluation.sources.base)
    return (
        f"On whole rows, the long model is {gain.compared_with(f'the {chunks:.2f} % of {base} in chunks')}. This "
        "includes adaptation to the corpus, unless that model was trained on the same text."
    )


def gains_table(evaluation: Evaluation, grouping: Grouping) -> Table:
    """Returns a line per group of tokens: both accuracies, and what the longer context gains."""
    columns: dict[str, Mapping[str, Accuracy]] = {
        view: evaluation.measured[view].groups[grouping] for view in CONTEXT_VIEWS
    }
    return groups_table(columns, grouping, evaluation.gains[grouping])


def groups_table(
    columns: Mapping[str, Mapping[str, Accuracy]],
    grouping: Grouping,
    gains: Mapping[str, Difference | None] | None = None,
) -> Table:
    """Returns a line per group that has tokens, with an accuracy per column, all on the same tokens, and the gain.

    The groups of a grouping have all selected tokens together.
    """
    *_, latest = columns.values()
    num_selected, lines = sum(one.num_selected for one in latest.values()), []
    for name, one in latest.items():
        if one.num_selected:
            share = f"{100 * one.num_selected / num_selected:.1f} %"
            accuracies = [accuracy_text(column[name]) for column in columns.values()]
            gain = [difference_text(gains[name])] if gains else []
            lines.append([OCCURRENCE.get(name, name), f"{one.num_selected:,}", share, *accuracies, *gain])
    return Table([GROUPED_BY[grouping], "selected", "share", *columns, *(["gain"] if gains else [])], lines)


def distance_chart(evaluation: Evaluation) -> Chart:
    """Returns both accuracies by the distance to the nearest other occurrence, with a line where chunks end."""
    series = []
    for view, colour in CONTEXT_VIEWS.items():
        groups = enumerate(evaluation.measured[view].groups["distance"].values())
        series.append(accuracy_series(view, colour, [(float(at), one) for at, one in groups if one.num_selected]))
    lengths = evaluation.base_positions, evaluation.row_length
    border = group_starts("distance", *lengths).index(chunk_content(evaluation.base_positions)) - 0.5
    return Chart(
        "Accuracy by distance to the nearest other occurrence",
        (GROUPED_BY["distance"], "accuracy (%)"),
        series,
        "points",
        [OCCURRENCE.get(name, name) for name in group_names("distance", *lengths)],
        (border, "end of a chunk's reach"),
    )
