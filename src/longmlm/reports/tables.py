"""Tables as text for a terminal and as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from longmlm.artifacts.accuracy import Difference


@dataclass(frozen=True, slots=True)
class Table:
    """A header and lines of text of the same length."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def text_table(table: Table) -> str:
    """Returns columns of text under a header, the first aligned left and the others right."""
    rows = (table.header, *table.lines)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    rules = ["-" * width for width in widths]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in (table.header, rules, *table.lines))


def signed(text: str) -> str:
    """Returns a number in words with a minus sign in place of a hyphen, and zero without one."""
    return re.sub(r"-(?!0(\.0*)?(?![\d.]))", "−", text).replace("-", "")


def percent(value: float | None, decimals: int = 2) -> str:
    """Returns a number as text, a dash where there is none."""
    return "–" if value is None else signed(f"{value:.{decimals}f}")


def difference_text(difference: Difference | None) -> str:
    """Returns a difference in percentage points with its standard error, a dash where there is none."""
    if difference is None:
        return "–"
    return signed(f"{difference.points:+.2f} ± {difference.standard_error:.2f}")


def markdown_table(table: Table) -> str:
    """Returns the table as Markdown, the first column aligned left and the others right."""
    rules = ["---", *("---:" for _ in table.header[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (table.header, rules, *table.lines))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(cells)]
