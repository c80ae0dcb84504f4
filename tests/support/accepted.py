"""Texts that users read, compared with those in tests/accepted; `pytest --update-pages` accepts those of today."""

import difflib
import html
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "accepted"
HIDDEN = re.compile(r"<(style|svg)\b.*?</\1>|<wbr>", re.DOTALL)
LABEL = re.compile(r'<div[^>]*role="img"[^>]*aria-label="([^"]*)"[^>]*>')
CELL, BREAK = re.compile(r"</t[dh]>"), re.compile(r"</(?:p|h\d|tr|li|div|dt|dd|pre|title|summary|figcaption)>")


def check(name: str, text: str, is_accepted: bool) -> None:
    """Compares the text with the file of this name, or writes the file if the text is accepted."""
    path = FOLDER / name
    if is_accepted:
        path.write_text(text, encoding="utf-8")
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == found, f"{name} has changed; if that is meant: pytest --update-pages, and read git diff"


def lines_of(page: str) -> str:
    """Returns the text of an HTML page, a line for each paragraph and each row of a table; charts by their labels."""
    shown = HIDDEN.sub("", LABEL.sub(r"[\1]<br>", page))
    shown = BREAK.sub("<br>", CELL.sub(" | ", shown.replace("\n", " "))).replace("<br>", "\n")
    lines = (" ".join(line.split()) for line in html.unescape(re.sub(r"<[^>]+>", " ", shown)).split("\n"))
    return "".join(f"{line}\n" for line in lines if line.strip(" |"))


def changes(usual: str, variants: Mapping[str, str]) -> str:
    """Returns which lines of the usual text are others in each variant."""
    parts = []
    for name, text in variants.items():
        found = [*difflib.unified_diff(usual.splitlines(), text.splitlines(), lineterm="", n=0)][2:]
        parts += [f"== {name}", *(line for line in found if not line.startswith("@@")), ""]
    return "\n".join(parts)
