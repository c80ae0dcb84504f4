"""docs/performance.md shows the published results, and new results replace those of the same benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest
from performance import PICTURES, PUBLISHED, TEXTS, merged, page, pictures, split_shapes


@pytest.fixture(scope="module")
def published() -> list[dict[str, Any]]:
    """The committed results."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


@pytest.fixture
def growth() -> dict[str, Any]:
    """A run in which growth alone was measured, over two lengths, without dropout and with it."""
    entry = {"shape": "2 x 512 tokens", "ours": 200.0, "peer": None, "ratio": None, "unit": "tokens/s", "aim": None}
    entry |= {"met": None, "peer_name": None, "ours_gib": 2.0, "peer_gib": None}
    line = {"measured": "formula", "exponent": 1.25, "is_near_linear": False, "quadratic_share": 0.3}
    lines = [line, line | {"measured": "longmlm", "exponent": 1.3}]
    extra = {"row_lengths": [512, 1024], "num_tokens": 1024, "flop_per_token": [1e9, 1.5e9], "growth": lines}
    found = {"command": "python benchmarks/growth.py", "name": "growth", **entry, **extra}
    long = entry | {"shape": "1 x 1024 tokens", "ours": 150.0}
    others = [long, entry | {"ours": 180.0}, long | {"ours": 130.0}]
    facts = {"machine": "2 cores", "date": "2026-12-01", "revision": "abc", "load": 0.1}
    return {**facts, "is_quick": False, "results": [found | {"others": others}]}


def test_page_and_pictures_are_up_to_date(root: Path, published):
    assert page(published) == (root / "docs" / "performance.md").read_text(encoding="utf-8")
    drawn = pictures(published)
    assert drawn
    assert {name for name in drawn if (PICTURES / name).exists()} == drawn.keys()


def test_each_result_has_its_machine_date_and_figures(published):
    text = page(published)
    assert len(published) >= 5
    for one in published:
        assert f"## {one['name'][0].upper()}{one['name'][1:]}\n" in text
        assert one["name"] in TEXTS
        assert f"{one['machine']}, {one['date']}" in text
        shapes = [entry["shape"] for entry in (one, *one.get("others", ()))]
        shared, works = split_shapes(shapes)
        assert not shared or f"In all rows: {shared}.\n" in text
        for shape, work in zip(shapes, works, strict=True):
            assert f"| {work} |" in text
            assert sorted(shape.split(", ")) == sorted(", ".join(filter(None, (shared, work))).split(", "))


def test_a_run_replaces_results_of_the_same_name_and_adds_others(published, growth):
    published = [one for one in published if one["name"] != "growth"]
    again = {**published[0], "ours": 999.0}
    results = merged(published, {**growth, "results": [*growth["results"], again]})
    assert len(results) == len(published) + 1
    assert {one["name"] for one in results} == {one["name"] for one in published} | {"growth"}
    assert next(one for one in results if one["name"] == again["name"])["ours"] == 999.0
    text = page(results)
    assert "| formula | 1.25 | no | 30% |" in text
    assert "Near-linear growth is refuted: the exponents are 1.30, 1.25 by the formula." in text
    assert "| rows of 1,024 | 1.50 | 7.50 | 6.67 | 7.69 | 2.00 | 2.00 |" in text
    assert "2 cores, 2026-12-01, load 0.1 at the start" in text
    assert "![growth](pictures/growth.svg)" in text
    assert "Time per token" in pictures(results)["growth.svg"]


def test_a_table_does_not_repeat_what_all_rows_share():
    assert split_shapes(["base, 1 x 512, bf16", "base, 1 x 1536, bf16"]) == ("base, bf16", ["1 x 512", "1 x 1536"])
    assert split_shapes(["a, b", "a, c, b"]) == ("a", ["b", "c, b"])
    assert split_shapes(["a, b", "a, b"]) == ("a", ["b", "b"])
    assert split_shapes(["a, b", "c, d"]) == ("", ["a, b", "c, d"])
    assert split_shapes(["a, b"]) == ("", ["a, b"])
