"""Rows on a terminal, with selected tokens in colours or, where there are none, in brackets; and on a page."""

import os
import sys
from collections.abc import Mapping, Sequence

from longmlm.data.row import Row
from longmlm.escaping import printable
from longmlm.inspect.reading import Outcome, Piece, Reading
from longmlm.reports.pages import Head, render
from longmlm.reports.tables import Table, text_table

COLOURS: dict[Outcome, str] = {
    "masked": "30;43",
    "random": "30;45",
    "unchanged": "30;46",
}  # black on yellow, magenta, cyan
BRACKETS: dict[Outcome, str] = {"masked": "[{}]", "random": "{{{}}}", "unchanged": "<{}>"}
OPENS = {"": "", "word": "·", "sentence": "‖ "}
LEGEND = (
    Piece(0, "", "replaced by a mask", "masked"),
    Piece(0, "  ", "replaced", "random", "by a random token"),
    Piece(0, "  ", "selected, but unchanged", "unchanged"),
)
PAGE_HEADER = "<!doctype html> <!-- longmlm inspect -->"  # by which an earlier page is known


def has_colours() -> bool:
    """Returns whether standard output shows colours: it is a terminal, and NO_COLOR is not set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def rows_text(rows: Mapping[str, Sequence[Reading]], is_coloured: bool) -> str:
    """Returns the readings of rows, by title, as text that is escaped for a terminal."""
    lines = [_drawn([*LEGEND, *_marks(first_row(rows))], is_coloured)]
    for title, readings in rows.items():
        lines += ["", title]
        for reading in readings:
            lines += ["", f"{reading.title}: {printable(reading.summary)}"]
            for part in reading.parts:
                lines.append(f"── {printable(part.source)}, tokens {part.first:,} to {part.last:,}")
                lines.append(_drawn(part.pieces, is_coloured))
            if reading.guesses:
                lines += ["", printable(text_table(_guesses_table(reading)))]
    return "\n".join(lines)


def rows_page(head: Head, rows: Mapping[str, Sequence[Reading]], made_by: str) -> str:
    """Returns an HTML page with the readings of rows, by title."""
    marks = _marks(first_row(rows))
    return str(
        render("rows.html", package="longmlm.inspect", head=head, rows=rows, legend=[*LEGEND, *marks], made_by=made_by)
    )


def first_row(rows: Mapping[str, Sequence[Reading]]) -> Row:
    """Returns the first row: all rows of a folder know the same."""
    return next(iter(rows.values()))[0].masked.row


def _marks(row: Row) -> list[Piece]:
    """Returns the legend of what such rows record in addition to documents."""
    sentence, word = (Piece(0, "  ", f"a {kind} begins", opens=kind) for kind in ("sentence", "word"))
    return [*([] if row.sentence_starts is None else [sentence]), *([] if row.is_word_start is None else [word])]


def _guesses_table(reading: Reading) -> Table:
    lines = []
    for number, token in enumerate(reading.selected):
        guesses = [
            " | ".join(f"{'✓ ' if one.is_right else ''}{one.text} {100 * one.probability:.0f} %" for one in own[number])
            for own in reading.guesses.values()
        ]
        lines.append([f"{token.position:,}", token.text, token.shown or token.outcome, *guesses])
    return Table(["position", "token", "shown as", *reading.guesses], lines)


def _drawn(pieces: Sequence[Piece], is_coloured: bool) -> str:
    texts = []
    for piece in pieces:
        text = printable(f"{piece.text} → {piece.shown}" if piece.shown else piece.text)
        if piece.outcome != "plain":
            text = (
                f"\x1b[{COLOURS[piece.outcome]}m{text}\x1b[0m" if is_coloured else BRACKETS[piece.outcome].format(text)
            )
        texts.append(f"{printable(piece.space)}{OPENS[piece.opens]}{text}")
    return "".join(texts)
