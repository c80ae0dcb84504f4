"""The documentation site is built without a warning, loads nothing from elsewhere, and its search finds settings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)|<link\b[^>]*\bhref=\"([^\"]+)|url\(([^)]+)\)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > 20
    loaded = {next(filter(None, groups)) for page in pages for groups in LOADED.findall(page)}
    assert any(name.endswith(".css") for name in loaded)
    assert {name for name in loaded if re.match(r"(https?:)?//", name)} == set()
    assert not (site / "scripts").exists()


def test_code_in_tables_is_not_broken_within_a_word(site: Path) -> None:
    [name] = re.findall(r'href="(stylesheets/[^"]+)"', (site / "settings.html").read_text(encoding="utf-8"))
    rules = dict(re.findall(r"^(\.[^{]+?) \{([^}]*)\}", (site / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert "word-break: normal" in rules[".md-typeset table code"]
    assert "overflow-wrap: normal" in rules[".md-typeset table code"]


@pytest.mark.parametrize("word", ["csv", "dropout", "text_field", "num_steps", "parquet", "licence", "alpha"])
def test_search_finds_a_setting_before_records_and_measurements(site: Path, word: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    scores = {entry["location"]: score for entry in index["docs"] if (score := _score(entry, word, index["config"]))}
    ranked = sorted(scores, key=lambda location: -scores[location])
    assert any(location.startswith("settings.html") for location in ranked[:3])
    records = [location for location in ranked if location.startswith(("decisions/", "experiments/"))]
    assert not records or ranked.index(records[0]) > 1


def _score(entry: dict[str, Any], word: str, config: dict[str, Any]) -> float:
    """Returns what the site's search scores a page or section for one word: BM25 without a penalty for long texts."""
    score = 0.0
    for field, settings in config["fields"].items():
        text = re.sub(r"<[^>]+>", " ", str(entry.get(field, "")))
        count = sum(found.lower().startswith(word) for found in re.split(config["separator"], text))
        score += settings["boost"] * 2.2 * count / (1.2 + count)
    return score * entry.get("boost", 1.0) * (2 if "#" in entry["location"] else 5)
