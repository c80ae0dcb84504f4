"""The commands and the code of README and tutorial run as they are printed, in an empty folder, offline."""

import json
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Page
from tests.support.tiny import demo_texts, tiny_model, tiny_tokenizer
from tests.support.walkthrough import walk_through

NUM_POSITIONS = 512


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with what the README's reader has: a BERT by that name, and documents."""
    model = tmp_path / "google-bert" / "bert-base-chinese"
    tiny_model("bert", 0, NUM_POSITIONS).save_pretrained(model)
    tiny_tokenizer("bert", 0, NUM_POSITIONS).save_pretrained(model)
    (model / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (tmp_path / "docs").mkdir()
    lines = [json.dumps({"text": text * 3}) for text in demo_texts()]
    (tmp_path / "docs" / "mine.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_readme(folder: Path) -> None:
    outputs = walk_through(
        Page(ROOT / "README.md"), folder, skipped=["longmlm run demo"]
    )  # tests/processes/test_demo.py
    assert len(outputs) == 6
    config = json.loads((folder / "out" / "mine" / "release" / "config.json").read_text())
    assert config["max_position_embeddings"] == 1536


def test_tutorial(tmp_path: Path) -> None:
    page = Page(ROOT / "docs" / "tutorial.md")
    outputs = walk_through(page, tmp_path)
    settings = (tmp_path / "mine.toml").read_text()
    assert "held_out_fraction = 0.3" in settings
    printed = _printed(page, "longmlm prepare mine.toml")
    assert _up_to_speed(outputs["longmlm prepare mine.toml"]) == _up_to_speed(printed)
    assert outputs["longmlm extend mine.toml"] == _printed(page, "longmlm extend mine.toml")
    assert (tmp_path / "out" / "mine" / "release" / "README.md").is_file()
    assert (tmp_path / "zh.toml").is_file()


def _printed(page: Page, command: str) -> str:
    """Returns the output that the page shows for a command."""
    blocks = [content for _, content in page.blocks]
    return blocks[blocks.index(f"{command}\n") + 1]


def _up_to_speed(output: str) -> str:
    """Returns the lines of prepare's report that are the same on every machine."""
    report, _, _ = output.partition("records set aside")
    assert "fill rate" in report
    return report
