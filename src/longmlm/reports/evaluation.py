"""The report of an evaluation: tables, charts and a page, written with evaluation.json into one folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Difference, block_names
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.evaluation import (
    BLOCKS_PICTURE,
    RECOVERY_PICTURE,
    VIEW_NAMES,
    Evaluation,
    ViewName,
)
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.errors import counted
from longmlm.reports.charts import Chart, Colour, Series, accuracy_series, write_png
from longmlm.reports.context import context_sections
from longmlm.reports.pages import Head, Section, Tile, page, public_path, write_page
from longmlm.reports.tables import Table, accuracy_text, difference_text, percent, signed
from longmlm.settings.pretrain import number_format

EXPLANATIONS: dict[ViewName, str] = {
    "base_cut": "base model, rows cut to its length",
    "base_chunks": "base model, rows in chunks of its length",
    "long_before": "long model before training, whole rows",
    "long_after": "long model after training, whole rows",
    "long_after_cut": "long model after training, rows cut as for base_cut: the accuracy that remains on short texts",
}
AT_OWN_LENGTH: dict[ViewName, str] = {
    "base_cut": "base model, whole rows",
    "long_before": "model before training, whole rows",
    "long_after": "model after training, whole rows",
}
COLOURS: dict[ViewName, Colour] = {
    "base_cut": "ink",
    "base_chunks": "amber",
    "long_before": "pale",
    "long_after": "blue",
}
BY_SOURCE = (
    "The same accuracies by source, with the loss of the latest long model in nats per token and, in percentage "
    "points, the difference from the accuracy to recover."
)
BY_ITSELF = " (each document by itself)"
BY_ITSELF_MEANS = (
    "Each document by itself: no token attends to another document of its row, as in the training of this model. The "
    "other models read a row as one text."
)
TILES: tuple[ViewName, ...] = ("long_after", "base_chunks", "base_cut", "long_before")


def write_evaluation(evaluation: Evaluation, folder: Path, made_by: str) -> None:
    """Writes evaluation.json, the pictures and the page into a folder; `made_by` is the command with its settings."""
    write_png(_blocks_chart(evaluation), folder / BLOCKS_PICTURE)
    if evaluation.curve:
        write_png(recovery_chart(evaluation.curve), folder / RECOVERY_PICTURE)
    write_page(evaluation_page(evaluation, made_by), folder / PAGE_FILE)
    artifact.write(folder / Evaluation.FILE, evaluation)


def evaluation_page(evaluation: Evaluation, made_by: str) -> str:
    """Returns the page about an evaluation."""
    bars = "Error bars show two standard errors."
    if not evaluation.is_at_own_length:
        bars += (
            " The base model reads only the first block; in chunks it reads the others too, but without the text "
            "before each chunk."
        )
    finer = "The same at a finer resolution. Shaded areas show two standard errors."
    by_source = sources_table(evaluation)
    sections = [
        Section("Accuracy", _caption(evaluation), accuracy_table(evaluation)),
        Section("What the columns mean", BY_ITSELF_MEANS if evaluation.isolated else "", _explanations(evaluation)),
        *([Section("By source", BY_SOURCE, by_source)] if by_source.lines else []),
        Section("By block of positions", bars, _blocks_chart(evaluation)),
        Section("By position", finer, _positions_chart(evaluation)),
    ]
    if evaluation.pairs:
        text = "One pair of segments from each held-out row, drawn once; rows of a single sentence give none."
        sections.append(Section("Pairs", text, {"model after training": str(evaluation.pairs)}))
    sections += context_sections(evaluation)
    if evaluation.curve:
        text, chart = _recovery_text(evaluation.curve[-1]), recovery_chart(evaluation.curve)
        sections.append(Section("Recovery during training", text, chart))
    if evaluation.examples:
        rows = counted(len(evaluation.examples), "row")
        read = "this document of the row" if evaluation.latest_view in evaluation.isolated else "the whole row"
        text = (
            f"Predictions of {evaluation.latest_view} at the last masked position of {rows}, "
            f"spread evenly over the held-out split, not hand-picked. The model read {read}, in which other tokens "
            "were masked too; the highlighted word is the original."
        )
        sections.append(Section("Masks near the end of a long row", text, evaluation.examples))
    sources = evaluation.sources
    facts = {
        "rows": public_path(sources.rows),
        "base model": public_path(sources.base),
        "base model revision": sources.base_revision,
        "model before training": public_path(sources.before or ""),
        "model after training": public_path(sources.after or ""),
        "SHA-256 of its weights": sources.after_sha256,
        "SHA-256 of the rows": sources.rows_sha256,
        "precision": number_format(evaluation.precision),
        "mask seed": str(evaluation.held_out.mask_seed),
    }
    sections.append(Section("Rows and models", "", {name: value for name, value in facts.items() if value}))
    return page(_head(evaluation), sections, made_by)


def accuracy_table(evaluation: Evaluation) -> Table:
    """Returns a line for whole rows and one per block, with a column per view: percent with standard errors."""
    names = _views(evaluation)
    lines = [["whole row", *(accuracy_text(evaluation.measured[name].whole) for name in names)]]
    for number, positions in enumerate(block_names(evaluation.base_positions, evaluation.row_length)):
        lines.append([positions, *(accuracy_text(evaluation.measured[name].blocks[number]) for name in names)])
    return Table(["accuracy in %", *names], lines)


def sources_table(evaluation: Evaluation) -> Table:
    """Returns a line per source with a column per view, the loss of the latest one and what it recovered."""
    names = _views(evaluation)
    lines = []
    for source, latest in evaluation.measured[evaluation.latest_view].sources.items():
        accuracies = [accuracy_text(evaluation.measured[name].sources[source].whole) for name in names]
        loss = "–" if latest.whole.loss is None else f"{latest.whole.loss:.3f}"
        gain = evaluation.difference("long_after", evaluation.to_recover, source)
        lines.append([source, f"{latest.whole.num_selected:,}", *accuracies, loss, difference_text(gain)])
    return Table(["source", "selected", *names, "loss", f"long_after - {evaluation.to_recover}"], lines)


def explanation(evaluation: Evaluation) -> str:
    """Returns what the columns of the table mean, in two sentences."""
    columns = "; ".join(f"{name}: {text}" for name, text in _explanations(evaluation).items())
    return f"{_caption(evaluation)} {columns}."


def _explanations(evaluation: Evaluation) -> dict[str, str]:
    explanations = EXPLANATIONS | (AT_OWN_LENGTH if evaluation.is_at_own_length else {})
    return {name: explanations[name] + BY_ITSELF * (name in evaluation.isolated) for name in _views(evaluation)}


def _views(evaluation: Evaluation) -> list[ViewName]:
    return [name for name in VIEW_NAMES if name in evaluation.measured]


def _caption(evaluation: Evaluation) -> str:
    num_selected = evaluation.measured[evaluation.latest_view].whole.num_selected
    return f"Masked-token accuracy on {counted(num_selected, 'selected token')}, in percent, ± one standard error."


def _head(evaluation: Evaluation) -> Head:
    tiles = []
    for view in (view for view in TILES if view in evaluation.measured):
        value, sign, error = accuracy_text(evaluation.measured[view].whole).partition(" ± ")
        tiles.append(
            Tile(_explanations(evaluation)[view], f"{value} %" if sign else value, f"{sign.strip()} {error}".strip())
        )
    if (gain := evaluation.difference("long_after", "base_chunks")) is not None:
        value = signed(f"{gain.points:+.2f}")
        tiles.append(Tile("long model minus base model in chunks", value, f"± {gain.standard_error:.2f} points"))
    base = evaluation.sources.base.rstrip("/").rsplit("/", 1)[-1]
    lengths = f"from {evaluation.base_positions:,} to {evaluation.row_length:,} positions"
    return Head(
        f"{base}: {f'{evaluation.row_length:,} tokens' if evaluation.is_at_own_length else lengths}",
        f"Masked-token accuracy on {counted(evaluation.num_rows, 'held-out row')} of {evaluation.row_length:,} tokens, "
        "each under one mask, which is the same for every model.",
        finding(evaluation),
        is_good(evaluation),
        tiles,
    )


def finding(evaluation: Evaluation) -> str:
    """Returns whether the accuracy is recovered, and the differences from the base model on cut rows and short texts.

    Each has its standard error, and the words "which may be chance" if it is within two of them.
    """
    after, base = (evaluation.accuracy(view) for view in ("long_after", evaluation.to_recover))
    if after is None or base is None or (gain := evaluation.recovery) is None:
        return "Not trained yet: this is the accuracy right after extension."
    if evaluation.is_at_own_length:
        verdict = _verdict(gain, "than the base model")
        compared = gain.compared_with(f"the {base:.2f} % before training")
        return f"{verdict}: {after:.2f} % of the masked tokens are predicted correctly, {compared}."
    verdict = "Recovered" if evaluation.is_recovered else "Not recovered"
    if gain.points > 0 and not gain.is_within_error:
        verdict += ", and better than reading in chunks"
    numbers = f"the long model predicts {after:.2f} % of the masked tokens correctly on whole rows of "
    numbers += f"{counted(evaluation.row_length, 'token')}"
    short = counted(evaluation.base_positions, "token")
    compared = gain.compared_with(f"the base model's {base:.2f} % on the same tokens in chunks of {short}")
    sentences = [f"{verdict}: {numbers}, {compared}."]
    if over_cut := evaluation.difference("long_after", "base_cut"):
        cut = f"its {percent(evaluation.accuracy('base_cut'))} % on rows cut to {short}"
        sentences.append(f"That is {over_cut.compared_with(cut)}.")
    if change := evaluation.short_text_change:
        compared = change.compared_with("the base model")
        sentences.append(f"{_verdict(change, 'on short texts')}: on rows cut to {short}, {compared}.")
    return " ".join(sentences)


def is_good(evaluation: Evaluation) -> bool | None:
    """Returns whether the model has recovered and is not worse on short texts; None before training."""
    return evaluation.is_recovered and not evaluation.is_worse_on_short_texts


def _verdict(change: Difference, where: str) -> str:
    if change.is_within_error:
        return f"Not clearly better or worse {where}"
    return f"{'Worse' if change.is_loss else 'Better'} {where}"


def _series(evaluation: Evaluation, parts: Literal["blocks", "positions"], x: Sequence[float]) -> list[Series]:
    """Returns the accuracies of each drawn view, at those x where tokens were selected."""
    series = []
    for name in (name for name in COLOURS if name in evaluation.measured):
        measured = zip(x, getattr(evaluation.measured[name], parts), strict=True)
        if points := [(at, accuracy) for at, accuracy in measured if accuracy.num_selected]:
            series.append(accuracy_series(name, COLOURS[name], points))
    return series


def _blocks_chart(evaluation: Evaluation) -> Chart:
    names = block_names(evaluation.base_positions, evaluation.row_length)
    series = _series(evaluation, "blocks", [float(number) for number in range(len(names))])
    titles = ("positions in the row (tokens)", "accuracy (%)")
    return Chart("Accuracy by block of positions", titles, series, "points", names)


def _positions_chart(evaluation: Evaluation) -> Chart:
    starts = evaluation.position_starts
    middles = [(start + end - 1) / 2 for start, end in zip(starts, [*starts[1:], evaluation.row_length], strict=True)]
    titles = ("position in the row (tokens)", "accuracy (%)")
    border = (float(evaluation.base_positions), "end of the base model's positions")
    return Chart("Accuracy by position", titles, _series(evaluation, "positions", middles), border=border)


def recovery_chart(curve: Sequence[EvaluationMetrics]) -> Chart:
    """Returns a chart of the accuracy of a run over its steps, with those of the base model where they are known."""
    points, last = [(float(line.step), line.held_out.whole) for line in curve], curve[-1]
    levels = [Series("base_cut", "ink", [], [last.base_cut])] if last.base_cut is not None else []
    levels += [Series("base_chunks", "amber", [], [last.base_chunks])] if last.base_chunks is not None else []
    series = [*levels, accuracy_series("long model, whole row", "blue", points)]
    return Chart("Recovery during training", ("step (optimizer updates)", "held-out accuracy (%)"), series)


def _recovery_text(last: EvaluationMetrics) -> str:
    recovered = ""
    if last.recovered_at_step is not None:
        tokens = f", after {counted(last.recovered_at_tokens, 'token')}" if last.recovered_at_tokens is not None else ""
        recovered = f" The long model had recovered at step {last.recovered_at_step:,}{tokens}."
    return (
        "Accuracy of the long model on whole held-out rows during training; the shaded area shows two standard errors. "
        f"Horizontal lines show the base model, as the run measured it on its own held-out rows.{recovered}"
    )
