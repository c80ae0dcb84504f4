"""Pages are complete, safe, and readable by eye and by screen reader, in light and dark, wide and narrow."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import FilledMask
from longmlm.reports import pages
from longmlm.reports.charts import COLOURS, Chart, Series
from longmlm.reports.pages import Head, Section, Tile, page, without_paths, write_page
from longmlm.reports.tables import Table, text_table
from longmlm.settings.shipped import PACKAGE

STYLE = (Path(pages.__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
VOID = {"meta", "img", "br", "link", "wbr"}
EVIL = '<script>alert(1)</script> & "quoted"'
CHART = Chart("A chart", ("position", "share (%)"), [Series("one", "blue", [0.0, 1.0, 2.0], [3.0, 9.0, 5.0])])
HEAD = Head("A title", "A lead.", "Found: it.", True, [Tile("a name", "1,234", "of 5")])
TABLE = Table(["what", "long_name", "b"], [["x", "1.00 ± 0.50", "–"], ["y", "2.00 ± 0.25", "3"]])


class Reader(HTMLParser):
    """Collects elements with their attributes, and the text inside each kind; refuses an end without its beginning."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.elements, self.said = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.said.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.said[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


def read(shown: object, head: Head = HEAD, made_by: str = "a command") -> Reader:
    return Reader(page(head, [Section("A section", "A text.", shown)], made_by))


def filled(truth: str, *guesses: str, before: str = "a word before", after: str = " and after") -> FilledMask:
    return FilledMask(1, 30, before, after, truth, tuple((text, 0.5) for text in guesses))


def test_page_needs_no_other_file_and_no_script() -> None:
    for shown in (TABLE, CHART, [filled(" x", " x", " y")], {"a": "b"}):
        reader = read(shown)
        assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in reader.elements}
        text = page(HEAD, [Section("A section", "A text.", shown)], "a command")
        assert not re.search(r"https?:|//\w|@import|url\((?!#)", text)
        links = [attrs.get(key) for _, attrs in reader.elements for key in ("src", "href", "xlink:href")]
        assert all(link is None or str(link).startswith("#") for link in links)


@pytest.mark.parametrize(
    "shown", [Table([EVIL, EVIL], [[EVIL, EVIL]]), [filled(EVIL, EVIL, before=EVIL, after=EVIL)], {EVIL: EVIL}]
)
def test_text_is_never_taken_for_markup(shown: object) -> None:
    head = Head(EVIL, EVIL, EVIL, False, [Tile(EVIL, EVIL, EVIL)])
    text = page(head, [Section(EVIL, EVIL, shown)], EVIL)
    assert "<script" not in text
    reader = Reader(text)
    assert reader.said["h1"] == [EVIL]
    assert reader.said["title"] == [EVIL]
    assert reader.said["pre"] == [EVIL]
    assert reader.said["main"][0].count(EVIL) >= 4


def test_head_says_title_finding_and_chief_figures_before_the_rest() -> None:
    reader = read(TABLE)
    said = reader.said["header"][0]
    indices = [said.index(part) for part in ("A title", "A lead.", "✓ Found: it.", "a name", "1,234 of 5")]
    assert indices == sorted(indices)
    assert read(TABLE, Head("t", "l", "Lost: it.", False)).said["header"][0].count("✗ Lost: it.") == 1
    neutral = read(TABLE, Head("t", "l", "Nothing yet.", None)).said["header"][0]
    assert "Nothing yet." in neutral and not re.search("[✓✗]", neutral)
    assert reader.said["footer"][0].endswith("a command\n")


def test_table_cells_belong_to_headers_for_screen_readers() -> None:
    reader = read(TABLE)
    scopes = [attrs["scope"] for attrs in reader.all("th")]
    assert scopes == ["col", "col", "col", "row", "row"]
    assert reader.said["th"] == ["what", "long_name", "b", "x", "y"]
    assert reader.said["td"] == ["1.00 ± 0.50", "–", "2.00 ± 0.25", "3"]
    assert any(attrs.get("aria-label") == "A section" and attrs.get("tabindex") == "0" for attrs in reader.all("div"))


def test_names_wrap_at_punctuation_and_not_in_mid_word() -> None:
    text = page(
        HEAD,
        [
            Section(
                "A section", "", Table(["long_name", "n"], [["novels-of_1850.jsonl & <b>", "1"], ["rate-0.0006", "2"]])
            )
        ],
        "",
    )
    assert ">long_<wbr>name<" in text and ">rate-<wbr>0.0006<" in text
    assert ">novels-<wbr>of_<wbr>1850.<wbr>jsonl &amp; &lt;b&gt;<" in text
    assert "anywhere" not in re.findall(r"tbody th \{([^}]*)\}", STYLE)[0]


def test_chart_is_drawn_for_wide_and_narrow_screens_and_described_in_words() -> None:
    reader = read(CHART)
    assert len(reader.all("svg")) == 2
    pictures = [attrs for attrs in reader.all("div") if attrs.get("role") == "img"]
    assert {attrs["class"] for attrs in pictures} == {"broad", "narrow"}
    for attrs in pictures:
        label = "A chart. share (%) over position: one from 3 to 5 (minimum 3, maximum 9)."
        assert attrs["aria-label"] == label
    assert all(attrs["aria-hidden"] == "true" for attrs in reader.all("svg"))
    wide, narrow = STYLE.split("@media (max-width")
    assert ".narrow { display: none; }" in wide
    assert ".narrow { display: block; }" in narrow and ".broad { display: none; }" in narrow


@pytest.mark.parametrize(
    ("guesses", "verdict"),
    [((" house", " hut"), "✓ predicted"), ((" hut", " house"), "guess 2"), ((" hut", "house"), "✗ missed")],
)
def test_hits_and_misses_are_stated_in_words_not_by_colour_alone(guesses: tuple[str, ...], verdict: str) -> None:
    reader = read([filled(" house", *guesses)])
    assert verdict in reader.said["div"][-1] or any(verdict in said for said in reader.said["div"])
    right = [said for said in reader.said["li"] if "✓" in said and "50.0 %" in said]
    assert len(right) == (verdict != "✗ missed")
    assert reader.said["mark"] == ["house"]
    assert any("a word before house and after" in said for said in reader.said["p"])


def test_any_writing_and_white_space_can_be_read_and_no_piece_of_a_word_is_split_off() -> None:
    reader = read([filled(" ملك", " ملك", "\n", "", before="كان هناك", after=" في")])
    assert {"dir": "auto"} in reader.all("p")
    assert reader.said["bdi"] == ["ملك", "↵", "∅"]
    assert any("unknown" in said for said in read([filled("known", "known", before=" un", after="")]).said["p"])


def luminance(colour: str) -> float:
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_their_ground(theme: int) -> None:
    """As WCAG 2.2 asks: 4.5 to 1 for text, 3 to 1 for lines of a chart."""
    themes = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", themes[theme]))
    assert len(themes) == 2 and COLOURS.keys() < colours.keys()
    assert theme == 1 or {name: colours[name] for name in COLOURS} == COLOURS
    for ground in (colours["ground"], colours["card"]):
        assert all(contrast(colours[name], ground) >= 4.5 for name in ("ink", "faint", "green", "red"))
        assert all(contrast(colours[name], ground) >= 3 for name in ("pale", "blue", "amber"))
    assert contrast(colours["ink"], colours["mark"]) >= 4.5


def test_page_is_replaced_at_once_and_not_touched_if_identical(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    write_page("one", path)
    first = path.stat().st_ino
    write_page("one", path)
    assert path.stat().st_ino == first
    write_page("two", path)
    assert path.read_text() == "two"
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]


def test_settings_are_shown_without_absolute_paths_and_passwords() -> None:
    given = {
        "output": "/deep/out",
        "publish": "folder:/deep/rows",
        "stages": [{"files": ("/deep/*.txt", "near/b.txt"), "delimiter": "/", "steps": 3}],
        "release": {"publish": "ftp://me:secret@host/rows"},
        "model": str(PACKAGE / "bundled/roberta-mini"),
    }
    assert without_paths(given) == {
        "output": "out",
        "publish": "folder:rows",
        "stages": [{"files": ["*.txt", "near/b.txt"], "delimiter": "/", "steps": 3}],
        "release": {"publish": "ftp://host/rows"},
        "model": "bundled:roberta-mini",
    }


def test_columns_of_a_text_table_stand_below_each_other() -> None:
    lines = text_table(TABLE).splitlines()
    assert lines[0] == "what    long_name  b"
    assert lines[2:] == ["x     1.00 ± 0.50  –", "y     2.00 ± 0.25  3"]
