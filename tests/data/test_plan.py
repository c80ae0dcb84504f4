"""What rows depend on: the content of their text, not its path."""

from pathlib import Path

from longmlm.artifacts.rows import RowsPlan, SourceFile, SourceRecord
from longmlm.data.rows_plan import plan_rows
from longmlm.settings.prepare import PrepareRecipe, Source


def plan(folder: Path, text: str = "It rained.") -> RowsPlan:
    """Returns the plan of rows of one text, which is in the folder with its tokenizer."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    source = Source(files=(str(folder / "text.txt"),))
    recipe = PrepareRecipe(tokenizer=str(folder / "tokenizer"), row_length=8, sources=(source,))
    return plan_rows(recipe, "fingerprint").plan


def test_plans_without_paths_are_equal_wherever_the_text_is_and_differ_for_another_text(tmp_path: Path) -> None:
    one, other, snow = plan(tmp_path / "one"), plan(tmp_path / "other"), plan(tmp_path / "snow", "It snowed.")
    assert one != other and str(tmp_path) in str(one)
    assert one.without_paths() == other.without_paths() == one.without_paths().without_paths() != snow.without_paths()
    assert str(tmp_path) not in str(one.without_paths())
    on_hub = SourceRecord(dataset="owner/novels", split="train", commit="a" * 40)
    local = SourceRecord(dataset="/data/novels", files=(SourceFile(path="/data/novels/1.parquet", sha256=""),))
    assert on_hub.without_paths() == on_hub
    assert local.without_paths() == SourceRecord(dataset="novels", files=(SourceFile(path="1.parquet", sha256=""),))
