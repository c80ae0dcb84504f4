"""Complete rows are current without their text, and unchanged text is known by the size and time of its files."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import folders, staleness
from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.unfinished_rows import SourceStamps
from longmlm.cli import main
from longmlm.data import rows_plan
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError, ModelError
from longmlm.needs import check_inputs
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.staleness import check_text
from tests.support.current import pipeline, project, stale

__all__ = ["pipeline", "project"]


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the corpus files that are read from now on to hash them."""
    names: list[str] = []

    def sha256_of(path: Path) -> str:
        names.append(str(path))
        return folders.sha256_of(path)

    monkeypatch.setattr(rows_plan, "sha256_of", sha256_of)
    rows_plan._sha256_of.cache_clear()
    return names


def test_a_corpus_is_read_again_only_if_its_size_or_time_differs(
    pipeline: Callable[..., ResolvedPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, stamps = Path("text.jsonl"), Path("out/rows", SourceStamps.FILE)
    os.utime(text, ns=(0, (recorded := artifact.read(SourceStamps, stamps).files[0]).mtime_ns))
    names = hashed(monkeypatch)
    assert stale(pipeline()) == ["release"] and names == []
    with pytest.raises(FolderError, match="recipe.sources.0.language was en, is de"):
        stale(pipeline(language="de"))

    os.utime(text, ns=(0, recorded.mtime_ns + 1))
    assert stale(pipeline()) == ["release"] and names == ["text.jsonl"]
    assert artifact.read(SourceStamps, stamps).files == (replace(recorded, mtime_ns=recorded.mtime_ns + 1),)
    rows_plan._sha256_of.cache_clear()
    assert stale(pipeline()) == ["release"] and names == ["text.jsonl"]

    written = text.read_text(encoding="utf-8")
    text.write_text(written.replace("number 7", "number 8"), encoding="utf-8")
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now"):
        stale(pipeline())
    for content in ("{}", '{"format": 0}', "no JSON"):  # then files are hashed
        stamps.write_text(content, encoding="utf-8")
        text.write_text(written, encoding="utf-8")
        assert stale(pipeline()) == ["release"]
    assert artifact.read(SourceStamps, stamps).files[0].sha256 == recorded.sha256
    stamps.unlink()
    prepare_rows(pipeline().prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    assert artifact.read(SourceStamps, stamps).files[0].sha256 == recorded.sha256


def test_complete_rows_are_done_without_their_text(
    pipeline: Callable[..., ResolvedPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staleness.absent_text(pipeline().prepare) == ""
    Path("text.jsonl").unlink()
    assert stale(pipeline()) == ["release"]
    assert staleness.absent_text(pipeline().prepare).startswith("note: text.jsonl: not there")
    with pytest.raises(FolderError, match="recipe.sources.0.language was en, is de"):
        stale(pipeline(language="de"))
    check_text(pipeline().prepare)
    monkeypatch.setattr(sys, "argv", ["longmlm", "prepare", "out/rows.toml"])
    Path("out/rows.toml").write_text(to_toml(pipeline().prepare), encoding="utf-8")
    main()
    shutil.rmtree("out/rows")
    with pytest.raises(DataError, match=r"^text\.jsonl: no such file"):
        check_inputs(pipeline())


@pytest.mark.parametrize("patterns", [["a.jsonl", "b.jsonl"], ["[a].jsonl", "b*.jsonl"]])
def test_the_part_of_a_corpus_that_is_there_is_compared(
    pipeline: Callable[..., ResolvedPipeline], patterns: list[str]
) -> None:
    lines = Path("text.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("a.jsonl", lines[:15]), ("b.jsonl", lines[15:])):
        Path(name).write_text("".join(part), encoding="utf-8")
    shutil.rmtree("out/rows")
    config = pipeline(corpus=patterns)
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    Path("b.jsonl").unlink()
    staleness.check_result(config, "prepare")
    assert staleness.absent_text(config.prepare).startswith(f"note: {patterns[1]}: not there")
    Path("a.jsonl").write_text("".join(lines[:14]), encoding="utf-8")
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now"):
        staleness.check_result(config, "prepare")


def test_a_glob_that_finds_more_or_fewer_files_is_other_text(pipeline: Callable[..., ResolvedPipeline]) -> None:
    shutil.rmtree("out/rows")
    shutil.copy("text.jsonl", "more.jsonl")
    config = pipeline(corpus=["*.jsonl"])
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    staleness.check_result(config, "prepare")
    shutil.copy("text.jsonl", "most.jsonl")
    with pytest.raises(DataError, match="was made from other text than the corpus holds now"):
        staleness.check_result(config, "prepare")
    Path("most.jsonl").unlink()
    staleness.check_result(config, "prepare")
    Path("more.jsonl").unlink()
    with pytest.raises(DataError, match="was made from other text than the corpus holds now"):
        staleness.check_result(config, "prepare")


def test_rows_of_a_dataset_in_a_folder_that_is_gone_are_done(pipeline: Callable[..., ResolvedPipeline]) -> None:
    shutil.rmtree("out/rows")
    Path("data/set").mkdir(parents=True)
    shutil.move("text.jsonl", "data/set/train.jsonl")
    sources = [{"dataset": "data/set", "split": "train"}]
    config = pipeline(corpus=[], prepare={"recipe": {"sources": sources}})
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    staleness.check_result(config, "prepare")
    shutil.rmtree("data")
    staleness.check_result(config, "prepare")
    assert staleness.absent_text(config.prepare).startswith("note: data/set: not there")


def test_rows_whose_terms_are_gone_are_done(pipeline: Callable[..., ResolvedPipeline]) -> None:
    Path("terms.txt").write_text("映着远处\n", encoding="utf-8")
    shutil.rmtree("out/rows")
    recipe = {"words": "rjieba", "terms": "terms.txt"}
    config = pipeline(language="zh", prepare={"recipe": recipe})
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    Path("terms.txt").unlink()
    staleness.check_result(config, "prepare")
    assert staleness.absent_text(config.prepare).startswith("note: terms.txt: not there")
    without = pipeline(language="zh", prepare={"recipe": {"words": "rjieba"}})
    shutil.rmtree("out/rows")
    prepare_rows(without.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    with pytest.raises(ModelError, match="terms: terms.txt cannot be read"):
        staleness.check_result(config, "prepare")
