"""A process of prepare that is killed at work, as when memory runs out: the run that goes on makes the same rows."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longmlm.artifacts.rows import RowsManifest
from longmlm.data import rows, slices
from longmlm.data.duplicates import survey_slice
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.slices import SURVEYS, SliceJob, Work, pack_slice
from longmlm.data.vocabulary import Vocabulary
from longmlm.settings.prepare import PrepareRecipe
from longmlm.temporary import PARTIAL, partial_of, replaced_file


def killed(act: Callable[[], None]) -> None:
    """Acts in a process of its own, which is killed meanwhile."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def pack_a_part(job: SliceJob, number: int) -> None:
    original = slices.tokenized

    def killing(*arguments: Any) -> Iterator[Any]:
        yield from itertools.islice(original(*arguments), 4)
        os.kill(os.getpid(), signal.SIGKILL)

    slices.tokenized, rows.ROWS_PER_RECORD_BATCH = killing, 1
    pack_slice(job, number)


def survey_two_and_a_part(job: SliceJob, numbers: Sequence[int]) -> None:
    def killing(job: SliceJob, path: Path, content: bytes) -> None:
        with replaced_file(path, job.unfinished_folder) as half:
            half.write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    run_slices(job, numbers[:2], survey_slice)
    SliceJob.write = killing
    survey_slice(job, numbers[2])


def test_a_kill_in_a_slice_leaves_nothing_among_the_rows(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, prepared: tuple[Path, RowsManifest]
) -> None:
    def execute(job: SliceJob, numbers: Sequence[int]) -> None:
        killed(partial(pack_a_part, job, numbers[0]))
        assert max(path.stat().st_size for path in job.folder.rglob(f"*.arrow.*{PARTIAL}")) > 1_000
        run_slices(job, numbers)

    assert prepare_rows(recipe, vocabulary, output, execute).files == prepared[1].files


def test_after_a_kill_in_a_survey_those_that_are_finished_are_not_made_again(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path
) -> None:
    works: list[tuple[Work, list[int]]] = []

    def dies(job: SliceJob, numbers: Sequence[int], _survey: Work) -> None:
        killed(partial(survey_two_and_a_part, job, numbers))
        raise RuntimeError("killed")

    def goes_on(job: SliceJob, numbers: Sequence[int], work: Work = pack_slice) -> None:
        assert not list(job.folder.rglob(f"*{PARTIAL}"))
        works.append((work, [*numbers]))
        run_slices(job, numbers, work)

    recipe = replace(recipe, duplicates="near")
    expected = prepare_rows(recipe, vocabulary, output.with_name("undisturbed"))
    with pytest.raises(RuntimeError, match="killed"):
        prepare_rows(recipe, vocabulary, output, dies)
    left = sorted(path.name for path in partial_of(output).rglob("*slice-*"))
    assert left[:2] == ["slice-00000.parquet", "slice-00001.parquet"]
    assert [name.startswith("slice-00002.parquet.") and name.endswith(PARTIAL) for name in left[2:]] == [True]
    made = prepare_rows(recipe, vocabulary, output, goes_on)
    assert (made.files, made.report.duplicates) == (expected.files, expected.report.duplicates)
    [(_, packed)] = works[1:]
    assert works == [(survey_slice, packed[2:]), (pack_slice, packed)] and len(packed) > 3
    assert not (output / SURVEYS).exists()
