"""What prepare writes beside the rows for a person to look at."""

import html
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from longmlm.data.rows import open_rows
from longmlm.settings.prepare import PrepareConfig
from longmlm.stages.prepare import prepare
from tests.support.tiny import LONG_POSITIONS, World, demo_texts

Run = Callable[..., tuple[int, str, str]]


def settings(world: World, folder: Path) -> dict[str, object]:
    text = folder / "novels.jsonl"
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in demo_texts()), encoding="utf-8")
    made = {"tokenizer": str(world.base), "row_length": LONG_POSITIONS, "held_out_fraction": 0.25}
    return {"output": str(folder / "rows"), **made, "sources": [{"files": [str(text)]}]}


def test_page_tells_what_the_rows_are_made_of_and_how(world: World, tmp_path: Path, run_here: Run) -> None:
    code, said, _ = run_here(PrepareConfig, prepare, settings(world, tmp_path))
    page = tmp_path / "rows" / "index.html"
    assert code == 0
    assert said.splitlines()[-2:] == [f"page: {page}", f"rows: {tmp_path / 'rows'}"]
    text = page.read_text(encoding="utf-8")
    report = open_rows(tmp_path / "rows", "train").manifest["report"]
    assert report["train"]["rows"] > 50
    for split in ("train", "held_out"):
        assert f"<td>{report[split]['documents']:,}</td>" in text
        assert f"<td>{report[split]['fill_rate']:.1%}</td>" in text
    made_by = html.unescape(re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)[0])
    assert tomllib.loads(made_by)["sources"][0]["files"] == [str(tmp_path / "novels.jsonl")]


def test_page_is_no_part_of_the_data_and_comes_back_when_it_is_lost(
    world: World, tmp_path: Path, run_here: Run
) -> None:
    asked = settings(world, tmp_path)
    run_here(PrepareConfig, prepare, asked)
    page, manifest = (tmp_path / "rows" / name for name in ("index.html", "manifest.json"))
    first, sealed = page.read_bytes(), manifest.read_bytes()
    assert page.name not in json.loads(sealed)["files"]
    page.unlink()
    assert len(open_rows(tmp_path / "rows", "held_out")) > 10
    assert run_here(PrepareConfig, prepare, asked)[0] == 0
    assert (page.read_bytes(), manifest.read_bytes()) == (first, sealed)
