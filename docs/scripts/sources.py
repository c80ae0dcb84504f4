"""Where the measured numbers of the pages come from: python docs/scripts/sources.py lists those without a source.

A number is measured if it has a unit of measurement (%, MB/s, seconds, times, points ...), an error (±) or decimals, or
is a count of others (7 of 90). Its source is one of these:

- a table that a program fills, between `<!-- table: NAME -->` and `<!-- end -->`, or a figure of scripts/figures.py;
- a `[[measured]]` entry of docs/sources.toml: `text` is a piece of the page, written as an f-string over `d`, the
  content of a JSON file. A number is shown without its sign, unless its format asks for one: {d["gain"]:+.2f};
- a `[[logged]]` entry: the numbers in each of `texts` are in the log of an experiment;
- a `[[stated]]` entry, whose `why` says what it is instead.

A piece that is the header of a table stands for the whole table.
"""

import json
import re
import statistics
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from figures import FILLED, named, quoted

from longmlm.data.signatures import BAND_LENGTH, NUM_BANDS, NUM_WORDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REGISTRY = DOCS / "sources.toml"
PAGES = (ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("decisions/*.md")))
GENERATED = {"settings.md"}  # from code, by docs/scripts/settings_reference.py
WHY = {
    "setting": "a setting, a limit or an example, not a measurement",
    "estimate": "estimated, not measured; the page says so",
    "published": "measured by others, who are named",
    "arithmetic": "follows from other numbers of the page",
    "not kept": "measured here as the page says, but the output was not kept, and cannot be compared",
}
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`|\]\([^)]*\)")
TABLE = re.compile(r"^\|.*\|\n\|[-:| ]+\|\n(?:\|.*\|\n?)+", re.MULTILINE)
COUNT = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half an|an?"
NUMBER = rf"(?:\d[\d,]*(?:\.\d+)?|\b(?:{COUNT})\b|[一二两三四五六七八九十百]+)"
UNIT = (
    r"(?:%|[kMGT]i?B(?:/s)?\b|[kMGT]?FLOP|(?:million )?tokens(?:/s| per second)|[nµm]?s\b|(?:milli)?seconds?\b|"
    r"minutes?\b|hours?\b|times\b|fold\b|(?:percentage )?points\b|个?百分点|倍|毫?秒|分钟|个?小时)"
)
DECIMAL = r"(?<![\w.,/-])\d[\d,]*\.\d+(?!\w|\.\d)"
MEASURED = re.compile(
    rf"{NUMBER}(?: to {NUMBER})? ?{UNIT}|± ?\d[\d.]*|(?<![\d-])\d[\d,.]* of \d[\d,.]*\d\b|{DECIMAL}", re.IGNORECASE
)
DECIMAL_CELL = re.compile(r"\| *\**[+−]?[\d,]*\.\d")
NAMES = "Python|torch|transformers|accelerate|Apache|CC BY-SA|dropout"  # with a version, or a probability
HARMLESS = re.compile(
    rf"95 %(?= intervals?\b)|\ba second (?=[a-z]*\b)|\b(?:{NAMES}) [\d.]*\d(?: (?:to|至) [\d.]*\d)?", re.IGNORECASE
)


class Number(float):
    """A number that is shown without its sign unless the format has a plus, with a minus sign, and a space before %."""

    def __format__(self, spec: str) -> str:
        shown = format(float(self) if "+" in spec else abs(float(self)), spec)
        return shown.replace("-", "−").replace("%", " %")


def registry() -> dict[str, list[dict[str, Any]]]:
    """Returns the entries of docs/sources.toml by kind."""
    return tomllib.loads(REGISTRY.read_text(encoding="utf-8"))


@cache
def content(name: str) -> Any:
    """Returns the content of a JSON file of docs/; a list of results by their names."""
    data = _numbers(json.loads((DOCS / name).read_text(encoding="utf-8")))
    return {one["name"]: one for one in data} if isinstance(data, list) else data


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return Number(value) if isinstance(value, float) else value


def near_copies_found(changed: float) -> float:
    """Returns the probability that a near copy is found if so large a part of its words differs; see signatures.py."""
    kept = (1 - changed) ** NUM_WORDS
    return Number(1 - (1 - (kept / (2 - kept)) ** BAND_LENGTH) ** NUM_BANDS)


def measured_text(entry: dict[str, Any]) -> str:
    """Returns the piece of a page that a `[[measured]]` entry stands for, with the numbers of its file."""
    names = {"d": content(entry["file"]) if "file" in entry else None, "mean": statistics.fmean, "Number": Number}
    names |= {"near_copies_found": near_copies_found}
    return eval(f"f'''{entry['text']}'''", names)  # noqa: S307 - of our own file


def pieces(page: str, entries: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Returns the pieces of a page that have a source, by its path from the root."""
    found = [measured_text(one) for one in entries["measured"] if page in one["pages"]]
    found += [
        text for kind in ("logged", "stated") for one in entries[kind] if one["page"] == page for text in one["texts"]
    ]
    name = Path(page).name.replace(".zh-CN", "")
    return found + named().get(name, []) + quoted().get(name, [])


def text_of(page: str) -> str:
    """Returns a page without filled tables and fenced code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return FENCE.sub("", FILLED.sub("", text))


def without_source(page: str, text: str, entries: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yields each measured number of a page that has no source, with the words before it."""
    known = sorted(pieces(page, entries), key=len, reverse=True)
    for table in TABLE.findall(text):
        head = table.partition("\n")[0]
        if head in known or DECIMAL_CELL.search(table):
            text = text.replace(table, "")
        if head not in known and DECIMAL_CELL.search(table):
            yield head
    text = " ".join(text.split())
    for piece in known:
        text = text.replace(piece, "§")
    text = HARMLESS.sub("§", CODE.sub("]", text))
    for match in MEASURED.finditer(text):
        yield text[max(0, match.start() - 60) : match.end()]


def main() -> None:
    """Prints what has no source."""
    entries, missing = registry(), 0
    for path in (path for path in PAGES if path.name not in GENERATED):
        page = path.relative_to(ROOT).as_posix()
        for found in without_source(page, text_of(page), entries):
            print(f"{page}: {found}")
            missing += 1
    sys.exit(missing > 0)


if __name__ == "__main__":
    main()
