"""Tables as text for a terminal and as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from markupsafe import Markup

from longmlm.artifacts.accuracy import Accuracy, Difference
from longmlm.escaping import markdown, single_line


@dataclass(frozen=True, slots=True)
class Table:
    """A header and lines of text of the same length."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def text_table(table: Table) -> str:
    """Returns columns of text under a header, each line of the table in one line, the first aligned left."""
    rows = [[*map(single_line, row)] for row in (table.header, *table.lines)]
    widths = [max(_width(row[column]) for row in rows) for column in range(len(table.header))]
    rules = ["-" * width for width in widths]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in (rows[0], rules, *rows[1:]))


def signed(text: str) -> str:
    """Returns a number in words with a minus sign in place of a hyphen, and zero without one."""
    return re.sub(r"-(?!0(\.0*)?(?![\d.]))", "−", text).replace("-", "")


def percent(value: float | None, decimals: int = 2) -> str:
    """Returns a number as text, a dash where there is none."""
    return "–" if value is None else signed(f"{value:.{decimals}f}")


def accuracy_text(accuracy: Accuracy) -> str:
    """Returns an accuracy in percent with its standard error, a dash where there is none."""
    return f"{accuracy.accuracy:.2f} ± {accuracy.standard_error:.2f}" if accuracy.num_selected else "–"


def difference_text(difference: Difference | None) -> str:
    """Returns a difference in percentage points with its standard error, a dash where there is none."""
    if difference is None:
        return "–"
    return signed(f"{difference.points:+.2f} ± {difference.standard_error:.2f}")


def markdown_table(table: Table) -> Markup:
    """Returns the table as Markdown that shows its text, the first column aligned left and the others right."""
    header, *lines = ([*map(markdown, line)] for line in (table.header, *table.lines))
    rules = [Markup("---"), *(Markup("---:") for _ in table.header[1:])]
    return Markup("\n").join(Markup("| {} |").format(Markup(" | ").join(line)) for line in (header, rules, *lines))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    return [
        f"{space}{cell}" if column else f"{cell}{space}"
        for column, (cell, space) in enumerate(zip(row, spaces, strict=True))
    ]


def _width(text: str) -> int:
    """Returns how many columns of a terminal a text takes: Chinese, Japanese and Korean characters take two."""
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
