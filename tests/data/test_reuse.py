"""Rows that exist already: reused by the same command, refused when they were made from anything else."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import RowsManifest, read_rows_manifest
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.slices import SliceJob
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareRecipe, Source


def test_a_second_run_does_nothing(
    prepared: tuple[Path, RowsManifest], recipe: PrepareRecipe, vocabulary: Vocabulary
) -> None:
    folder, manifest = prepared
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}
    assert prepare_rows(recipe, vocabulary, folder) == manifest
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))} == before


@pytest.mark.parametrize(
    "change",
    [{"row_length": 65}, {"packing": "doc-sentences"}, {"held_out_fraction": 0.3}, {"slice_bytes": 9_000}],
    ids=lambda change: next(iter(change)),
)
def test_rows_made_with_other_settings_are_refused(
    prepared: tuple[Path, RowsManifest], recipe: PrepareRecipe, vocabulary: Vocabulary, change: dict
) -> None:
    with pytest.raises(DataError, match="other text or settings"):
        prepare_rows(replace(recipe, **change), vocabulary, prepared[0])
    assert read_rows_manifest(prepared[0]) == prepared[1]


def test_rows_made_from_another_text_or_vocabulary_are_refused(
    prepared: tuple[Path, RowsManifest], recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="other text or settings"):
        prepare_rows(recipe, replace(vocabulary, fingerprint="another"), prepared[0])
    (tmp_path / "a.jsonl").write_bytes(Path(recipe.sources[0].files[0]).read_bytes() + b"\n")
    changed = Source(files=(str(tmp_path / "a.jsonl"),))
    with pytest.raises(DataError, match="other text or settings"):
        prepare_rows(replace(recipe, sources=(changed, recipe.sources[1])), vocabulary, prepared[0])


def test_rows_made_by_other_rules_are_refused_with_the_remedy(
    prepared: tuple[Path, RowsManifest], recipe: PrepareRecipe, output: Path, vocabulary: Vocabulary
) -> None:
    shutil.copytree(prepared[0], output)
    artifact.write(output / RowsManifest.FILE, replace(prepared[1], plan=replace(prepared[1].plan, recipe_version=1)))
    with pytest.raises(DataError, match=f"{output} .* other rules .*: remove it or name another"):
        prepare_rows(recipe, vocabulary, output)


def test_a_source_that_changes_during_the_work_is_refused_and_nothing_is_kept(
    recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    text, output = tmp_path / "a.jsonl", tmp_path / "rows"
    text.write_bytes(Path(recipe.sources[0].files[0]).read_bytes())
    recipe = replace(recipe, sources=(Source(files=(str(text),)),))

    def append(job: SliceJob, numbers: Sequence[int]) -> None:
        run_slices(job, numbers)
        with text.open("a") as file:
            file.write('\n{"text": "appended"}')

    def touch(job: SliceJob, numbers: Sequence[int]) -> None:
        run_slices(job, numbers)
        os.utime(text, ns=(1, 1))

    with pytest.raises(DataError, match=f"{text} changed"):
        prepare_rows(recipe, vocabulary, output, append)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    prepare_rows(recipe, vocabulary, output, touch)
    assert (output / RowsManifest.FILE).is_file()
