"""Measures to files: evaluation.json, a table, pictures, and a page that needs nothing else."""

import base64
import json
import math
import re
from dataclasses import asdict
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest
from accelerate import Accelerator

from longmlm.evaluation.held_out import Accuracy, FrozenRows, Measured, cut, measure, whole, windows
from longmlm.evaluation.report import NAMES, as_json, block_names, cells, explanation, write_evaluation
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from tests.tiny import LONG_POSITIONS, NUM_POSITIONS, World

SOURCES = {"rows": "r", "base": "b", "before": "l", "after": "a & <b>", "after_sha256": "0" * 64}
VOID = {"meta", "img", "br", "link"}

pytestmark = pytest.mark.parametrize("world", [("roberta", 1)], ids=["roberta"], indirect=True)


class Reader(HTMLParser):
    """Collects tags, links and text, and refuses an end without its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.cells = [], [], [], []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.fixture
def measured(world: World, frozen: FrozenRows, accelerator: Accelerator) -> dict[str, Measured]:
    shorter = {"num_positions": NUM_POSITIONS, "special": frozen.special}
    views = {"cut": partial(cut, **shorter), "windows": partial(windows, **shorter), "whole": whole}
    base, trained = (MlmObjective(load_model(str(folder)).model) for folder in (world.base, world.trained))
    wanted = [(base, "base_cut", "cut"), (base, "base_windows", "windows"), (trained, "long_after", "whole")]
    found = {name: measure(one, frozen, views[view], NUM_POSITIONS, accelerator) for one, name, view in wanted}
    return found | {"long_before": found["long_after"]}


def curve() -> list[dict]:
    def line(step: int, accuracy: float) -> dict:
        one = {"accuracy": accuracy, "standard_error": 0.5, "loss": 3.0, "num_selected": 100}
        return {"step": step, "held_out": {"whole": one, "blocks": [one]}, "base_cut": 9.0}

    return [line(0, 3.0), line(10, 8.0), line(20, 9.5)]


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_file_holds_what_was_measured(measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path) -> None:
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, curve()), tmp_path)
    found = strict((tmp_path / "evaluation.json").read_text())
    expected = {
        "row_length": LONG_POSITIONS,
        "block": NUM_POSITIONS,
        "num_rows": len(frozen.row_ids),
        "mask_seed": 1789,
        "sources": SOURCES,
        "curve": curve(),
    }
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() == {"measured", "gains"}
    assert found["measured"].keys() == measured.keys()
    for name, one in measured.items():
        assert found["measured"][name]["whole"] == asdict(one.whole)
        assert len(found["measured"][name]["blocks"]) == 3
    unmeasured = found["measured"]["base_cut"]["blocks"][1]
    assert unmeasured == {"accuracy": None, "standard_error": None, "loss": None, "num_selected": 0}


def test_gains_are_differences_on_the_right_pairs(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    after, base_cut, base_windows = (
        measured[name].whole.accuracy for name in ("long_after", "base_cut", "base_windows")
    )
    assert after > max(base_cut, base_windows)
    gains = as_json(measured, frozen, NUM_POSITIONS, SOURCES, [])["gains"]
    assert gains == {"recovered": True, "context": after - base_windows}
    swapped = measured | {"long_after": measured["base_windows"], "base_cut": measured["long_after"]}
    assert as_json(swapped, frozen, NUM_POSITIONS, SOURCES, [])["gains"]["recovered"] is False
    equal = measured | {"long_after": measured["base_cut"]}
    assert as_json(equal, frozen, NUM_POSITIONS, SOURCES, [])["gains"]["recovered"] is True
    before = {name: one for name, one in measured.items() if name != "long_after"}
    assert as_json(before, frozen, NUM_POSITIONS, SOURCES, [])["gains"] == {}


def test_nothing_measured_is_said_in_strict_json(
    measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path
) -> None:
    nothing = Accuracy(math.nan, math.nan, math.nan, 0)
    empty = measured | {"base_windows": Measured(nothing, (nothing,) * 3)}
    write_evaluation(as_json(empty, frozen, NUM_POSITIONS, SOURCES, []), tmp_path)
    found = strict((tmp_path / "evaluation.json").read_text())
    assert found["gains"]["context"] is None
    assert found["measured"]["base_windows"]["whole"]["accuracy"] is None


def test_table_has_a_line_for_whole_rows_and_each_block(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    evaluation = as_json(measured, frozen, NUM_POSITIONS, SOURCES, [])
    table = cells(evaluation)
    assert list(table.header) == ["accuracy in %", *NAMES]
    assert [line[0] for line in table.lines] == ["whole row", "0–15", "16–31", "32–39"]
    assert block_names(evaluation) == ["0–15", "16–31", "32–39"]
    for name in NAMES:
        one, column = measured[name], table.header.index(name)
        for line, told in zip(table.lines, [one.whole, *one.blocks], strict=True):
            shown = f"{told.accuracy:.2f} ± {told.standard_error:.2f}" if told.num_selected else "–"
            assert line[column] == shown
    assert [line[1] for line in table.lines[2:]] == ["–", "–"]
    assert f"{measured['long_after'].whole.num_selected:,} selected" in explanation(evaluation)


def test_columns_that_were_not_measured_are_left_out(measured: dict[str, Measured], frozen: FrozenRows) -> None:
    before = {name: one for name, one in measured.items() if name != "long_after"}
    evaluation = as_json(before, frozen, NUM_POSITIONS, SOURCES, [])
    assert list(cells(evaluation).header) == ["accuracy in %", *NAMES[:3]]
    assert "long_after" not in explanation(evaluation)


def test_page_is_whole_and_needs_nothing_else(
    measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path
) -> None:
    evaluation = as_json(measured, frozen, NUM_POSITIONS, SOURCES, curve())
    write_evaluation(evaluation, tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert {"html", "head", "title", "body", "h1", "h2", "table", "img", "style"} <= set(reader.tags)
    assert not {"script", "link", "iframe"} & set(reader.tags)
    table = cells(evaluation)
    assert reader.cells == [cell for line in (table.header, *table.lines) for cell in line]
    heading = "data:image/png;base64,"
    assert not re.search(r"https?:|//\w|url\(|@import", re.sub(f'{heading}[^"]+', "", text))
    assert all(link.startswith(heading) for link in reader.links)
    embedded = [base64.b64decode(link.removeprefix(heading), validate=True) for link in reader.links]
    assert embedded == [(tmp_path / name).read_bytes() for name in ("blocks.png", "recovery.png")]


def test_pictures_show_something(measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path) -> None:
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, curve()), tmp_path)
    for name in ("blocks.png", "recovery.png"):
        picture = matplotlib.image.imread(tmp_path / name)
        height, width = picture.shape[:2]
        assert width > height > 300
        assert len({tuple(pixel) for pixel in picture[::5, ::5, :3].reshape(-1, 3).round(1)}) > 4


def test_earlier_result_is_replaced(measured: dict[str, Measured], frozen: FrozenRows, tmp_path: Path) -> None:
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, curve()), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "evaluation.json",
        "index.html",
        "blocks.png",
        "recovery.png",
    }
    write_evaluation(as_json(measured, frozen, NUM_POSITIONS, SOURCES, []), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"evaluation.json", "index.html", "blocks.png"}
    assert strict((tmp_path / "evaluation.json").read_text())["curve"] == []
    assert (tmp_path / "index.html").read_text().count("<img") == 1
