"""The commands and the code of the tutorial run as they are printed, in an empty folder, offline."""

from pathlib import Path

from tests.support.pages import ROOT, Page
from tests.support.walkthrough import walk_through


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
