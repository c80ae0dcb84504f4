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
    return plan_rows(recipe, "fingerprint")[0].plan


def test_plans_without_paths_are_equal_wherever_the_text_is(tmp_path: Path) -> None:
    one, other = plan(tmp_path / "one"), plan(tmp_path / "other")
    assert one != other
    assert one.without_paths() == other.without_paths() == one.without_paths().without_paths()
    assert str(tmp_path) in str(one)
    assert str(tmp_path) not in str(one.without_paths())


def test_plans_of_other_text_differ(tmp_path: Path) -> None:
    assert plan(tmp_path / "one").without_paths() != plan(tmp_path / "other", "It snowed.").without_paths()


def test_names_on_the_hub_are_kept_and_local_folders_lose_their_path() -> None:
    files = (SourceFile(path="/data/novels/1.parquet", sha256=""),)
    on_hub = SourceRecord(dataset="owner/novels", split="train", commit="a" * 40)
    local = SourceRecord(dataset="/data/novels", split="train", files=files)
    assert on_hub.without_paths() == on_hub
    assert local.without_paths().dataset == "novels"
    assert local.without_paths().files == (SourceFile(path="1.parquet", sha256=""),)
