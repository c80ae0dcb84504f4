"""docs/performance.md shows the published results, and new results replace those of the same benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest
from performance import PICTURES, PUBLISHED, filled, merged, pictures


@pytest.fixture(scope="module")
def published() -> list[dict[str, Any]]:
    """The committed results."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_page_and_pictures_are_up_to_date(root: Path, published: list[dict[str, Any]]) -> None:
    page = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page == filled(page, published)
    assert page.count("\n| training step: ") == 2
    drawn = pictures(published)
    assert drawn
    assert {name for name in drawn if (PICTURES / name).exists()} == drawn.keys()


def test_a_run_replaces_results_of_the_same_name_and_adds_others(published: list[dict[str, Any]]) -> None:
    facts = {"machine": "2 cores", "date": "2026-12-01", "revision": "abc", "load": 0.1}
    again, new = {**published[0], "ours": 999.0}, {**published[0], "name": "new"}
    results = merged(published, {**facts, "results": [again, new]})
    assert [one["name"] for one in results] == [*(one["name"] for one in published), "new"]
    assert results[0]["ours"] == 999.0
    assert results[-1] == new
