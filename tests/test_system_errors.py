"""Errors of the operating system are recognised whatever a library raises, and explained in one line."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from longmlm.artifacts.metrics import MetricsFile, TargetMetrics, TrainingMetrics
from longmlm.data.corpus import SetAside, write_set_aside
from longmlm.data.row import Row
from longmlm.data.rows import open_shard, shard_schema
from longmlm.errors import FAILED, PROBLEMS, UNSUPPORTED, UNUSABLE, FolderError, explained, naming, system_error
from longmlm.folders import new_folder, write_text
from longmlm.reports.charts import Chart, Series, write_png
from longmlm.reports.pages import write_page
from longmlm.training.checkpoint import save_tensors
from tests.support.limits import largest_file, no_more_files

LONG = "a line of text\n" * 2000
ROW = Row(*(np.arange(5000, dtype=np.int64) for _ in range(3)))
METRICS = TrainingMetrics(
    step=1, tokens=1, targets={"mlm": TargetMetrics(1.0, 1.0)}, learning_rate=1.0, gradient_norm=1.0,
    tokens_per_second=1.0, elapsed_seconds=1.0,
)  # fmt: skip
CHART = Chart("accuracy", ("step", "%"), [Series("a", "blue", [1.0, 2.0], [1.0, 2.0])])


def write_rows(path: Path) -> None:
    with open_shard(path, shard_schema(60_000)) as shard:
        shard.write([ROW] * 10)


def write_sealed(path: Path) -> None:
    with new_folder(path) as partial:
        (partial / "text.txt").write_text(LONG)


def write_tokenizer(path: Path) -> None:
    Tokenizer(WordLevel({f"word{number}": number for number in range(3000)}, unk_token="word0")).save(str(path))


def write_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file:
        file.write(LONG.encode())


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, LONG),
    "page": lambda path: write_page(LONG, path),
    "sealed folder": write_sealed,
    "records": lambda path: write_set_aside(path, [SetAside("f.jsonl:1", "empty", 0)] * 1000),
    "rows": write_rows,
    "metrics": lambda path: [MetricsFile(path.parent).append(METRICS) for _ in range(50)],
    "picture": lambda path: write_png(CHART, path),
    "weights": lambda path: save_file({"a": torch.zeros(10_000)}, path),
    "optimizer": lambda path: save_tensors({"a": torch.zeros(10_000)}, path),
    "tokenizer": write_tokenizer,
    "arrow": write_arrow,
}


ATOMIC = ("text", "page", "sealed folder", "records", "rows")  # the others write into a folder that is sealed later
MESSAGES = {  # how libraries quote the system
    "Python": lambda number: OSError(number, os.strerror(number)),
    "Arrow": lambda number: OSError(f"[Errno {number}] Error writing bytes to file. Detail: [errno {number}]"),
    "Rust": lambda number: RuntimeError(
        f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
    ),
    "C++": lambda number: RuntimeError(f"unable to open file <f> in read-only mode: {os.strerror(number)} ({number})"),
}


@pytest.mark.parametrize("num_bytes", [0, 1000, 3300, 9000])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_becomes_too_large_is_one_line_with_a_path_whatever_writes_it(
    tmp_path: Path, writer: str, num_bytes: int
) -> None:
    path = tmp_path / "written.png"
    with pytest.raises(OSError, match="File too large") as raised, naming(tmp_path), largest_file(num_bytes):
        WRITERS[writer](path)
    line = str(explained(raised.value))
    assert (raised.value.errno, line.count("\n")) == (errno.EFBIG, 0)
    assert str(tmp_path) in line and PROBLEMS[errno.EFBIG][1] in line
    assert writer not in ATOMIC or not path.exists()
    WRITERS[writer](path)
    assert path.exists() or writer == "metrics"


@pytest.mark.parametrize("writer", WRITERS)
def test_too_few_handles_are_one_line_whatever_opens_a_file(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "written.png"
    with pytest.raises(OSError, match="Too many open files") as raised, naming(tmp_path), no_more_files():
        WRITERS[writer](path)
    line = str(explained(raised.value))
    assert raised.value.errno == errno.EMFILE
    assert PROBLEMS[errno.EMFILE][1] in line and str(tmp_path) in line
    assert not path.exists()
    WRITERS[writer](path)


@pytest.mark.parametrize(
    ("library", "number"),
    [(one, number) for one in MESSAGES for number in PROBLEMS if one != "C++" or PROBLEMS[number] is not UNSUPPORTED],
)
def test_every_problem_is_recognised_in_the_words_of_every_library(library: str, number: int) -> None:
    problem, remedy = PROBLEMS[number]
    found = system_error(MESSAGES[library](number), Path("out/rows"))
    assert found is not None and (found.errno, found.filename) == (number, "out/rows")
    line = str(explained(found))
    assert "out/rows" in line and remedy in line
    assert (problem in line) == (number != errno.EMFILE)
    assert (os.strerror(number) in line) == (PROBLEMS[number] in (FAILED, UNSUPPORTED))


def test_the_cause_of_an_error_counts_unless_the_code_has_dealt_with_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "f.bin")

    def raised(how: str) -> Exception:
        try:
            try:
                raise full
            except OSError as error:
                if how == "from":
                    raise ValueError("a library's own") from error
                if how == "from None":
                    raise ValueError("a library's own") from None
                raise ValueError("a library's own")  # noqa: B904 - what libraries do
        except ValueError as error:
            return error

    assert [bool(explained(raised(how))) for how in ("from", "within", "from None")] == [True, True, False]
    assert "f.bin" in str(explained(raised("within")))


@pytest.mark.parametrize("number", UNUSABLE)
def test_a_path_that_cannot_be_used_is_named(number: int) -> None:
    assert str(explained(OSError(number, os.strerror(number), "out"))).startswith(f"out: {os.strerror(number)}: ")
    assert explained(OSError(number, os.strerror(number))) is None  # of something that is no path


@pytest.mark.parametrize("error", [KeyError("a"), FileNotFoundError(errno.ENOENT, "No such file", "f"), OSError("odd")])
def test_other_errors_are_bugs_and_pass(error: Exception) -> None:
    assert explained(error) is None
    with pytest.raises(type(error)) as raised, naming(Path("out")):
        raise error
    assert raised.value is error


def test_a_user_error_keeps_its_message_whatever_caused_it() -> None:
    def refuse() -> None:
        try:
            raise OSError(errno.EIO, "Input/output error")
        except OSError as error:
            raise FolderError("name another folder") from error

    with pytest.raises(FolderError, match="name another"), naming(Path("out")):
        refuse()


def test_an_error_that_is_its_own_cause_is_searched_once() -> None:
    """As urllib3's MaxRetryError is that of the error which it was raised for."""
    error, exhausted = RuntimeError("no"), RuntimeError("retries exhausted")
    error.__context__, exhausted.__cause__ = exhausted, error
    assert explained(error) is None
