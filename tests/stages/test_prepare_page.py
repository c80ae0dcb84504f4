"""The page that prepare writes with the rows."""

import html
import re
import tomllib
from pathlib import Path

import pytest

from longmlm.data.rows import open_rows
from longmlm.folders import verify
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.stages.prepare import prepare
from tests.support.tiny import LONG_POSITIONS, World


@pytest.fixture
def config(world: World, tmp_path: Path) -> PrepareConfig:
    source = Source(files=(str(world.rows.parent / "text.jsonl"),))
    recipe = PrepareRecipe(
        tokenizer=str(world.base), row_length=LONG_POSITIONS, sources=(source,), held_out_fraction=0.25
    )
    return PrepareConfig(output=str(tmp_path / "rows"), recipe=recipe)


def test_page_shows_the_report_an_example_and_the_settings_without_local_paths(
    config: PrepareConfig, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(config)
    page = tmp_path / "rows" / "index.html"
    assert capsys.readouterr().out.splitlines()[-2:] == [f"page: {page}", f"rows: {tmp_path / 'rows'}"]
    text = page.read_text(encoding="utf-8")
    rows = open_rows(tmp_path / "rows", "train")
    assert rows.manifest.report.train.rows > 50
    for report in (rows.manifest.report.train, rows.manifest.report.held_out):
        assert f"<td>{report.documents:,}</td>" in text
        assert f"<td>{report.fill_rate:.1%}</td>" in text
    made_by = tomllib.loads(html.unescape(re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)[0]))
    assert made_by["recipe"]["sources"][0]["files"] == ["text.jsonl"]
    assert not [path for path in (tmp_path, world.base, world.rows.parent) if str(path) in text]
    opening = (world.rows.parent / "text.jsonl").read_text(encoding="utf-8")[10:40]
    assert html.escape(opening) in text


def test_page_is_no_part_of_the_data_and_comes_back_when_it_is_lost(config: PrepareConfig, tmp_path: Path) -> None:
    prepare(config)
    page, manifest = (tmp_path / "rows" / name for name in ("index.html", "manifest.json"))
    first, sealed = page.read_bytes(), manifest.read_bytes()
    assert page.name not in verify(tmp_path / "rows")["files"]
    page.unlink()
    prepare(config)
    assert (page.read_bytes(), manifest.read_bytes()) == (first, sealed)
