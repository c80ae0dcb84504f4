"""Figures to tables for a terminal, pictures, and one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any


def text_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns columns of text under a header, the first aligned left and the others right."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in (header, ["-" * width for width in widths], *lines)
    )


def packing_report(report: Mapping[str, Any]) -> str:
    """Returns what rows are made of, a column for each split, as text."""
    splits = ("train", "held_out")
    names = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")
    lines = [[name.replace("_", " "), *(f"{report[split][name]:,}" for split in splits)] for name in names]
    lines.append(["fill rate", *(f"{report[split]['fill_rate']:.1%}" for split in splits)])
    set_aside = ", ".join(f"{count:,} x {reason}" for reason, count in report["set_aside"].items()) or "none"
    return (
        f"{text_table(['', *splits], lines)}\n"
        f"records set aside: {set_aside}\n"
        f"{report['tokens_per_second']:,.0f} tokens/s in {report['elapsed_seconds']:.1f} s"
    )
