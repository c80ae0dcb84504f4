"""What rows depend on: the content of their text, not the places where it lies, nor how they are published."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from longmlm.data.plan import plan_of, without_paths
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source


def plan(folder: Path, text: str = "It rained.") -> dict[str, Any]:
    """Returns the plan of rows of one text, which lies with its tokenizer in the folder."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    config = PrepareConfig(
        output="rows",
        recipe=PrepareRecipe(
            tokenizer=str(folder / "tokenizer"), row_length=8, sources=(Source(files=(str(folder / "text.txt"),)),)
        ),
    )
    assert set(PUBLISHING) < {*PrepareConfig.__dataclass_fields__}
    published = replace(config, publish="hf:owner/name", license="mit", title="Rows", tag="v1", public=True)
    found = plan_of(config, config.sources, "fingerprint")
    assert plan_of(published, config.sources, "fingerprint") == found
    return found


def test_portable_plans_are_equal_wherever_the_text_lies_and_no_place_is_in_them(tmp_path: Path) -> None:
    one, other = plan(tmp_path / "one"), plan(tmp_path / "other")
    assert one != other
    assert without_paths(one) == without_paths(other) == without_paths(without_paths(one))
    assert str(tmp_path) in str(one)
    assert str(tmp_path) not in str(without_paths(one))


def test_portable_plans_of_other_text_differ(tmp_path: Path) -> None:
    assert without_paths(plan(tmp_path / "one")) != without_paths(plan(tmp_path / "other", "It snowed."))


def test_names_on_the_hub_stay_in_a_portable_plan_and_those_of_folders_lose_their_place(tmp_path: Path) -> None:
    sources = [
        {"dataset": "owner/novels", "split": "train", "commit": "a" * 40},
        {
            "dataset": "/data/novels",
            "split": "train",
            "files": [{"path": "/data/novels/1.parquet", "sha256": ""}],
        },
    ]
    found = without_paths({**plan(tmp_path / "one"), "sources": sources})["sources"]
    assert [source["dataset"] for source in found] == ["owner/novels", "novels"]
    assert found[0] == sources[0]
    assert found[1]["files"] == [{"path": "1.parquet", "sha256": ""}]
