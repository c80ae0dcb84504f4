"""Rows of a tiny world, and the reader of their tokens."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from longmlm.artifacts.rows import SourceRecord
from longmlm.data.row import Row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.inspect.reading import Reader
from tests.support.commands import command
from tests.support.hub_rows import hub, published_files
from tests.support.tiny import World, held_out
from tests.support.training import inputs
from tests.support.worlds import run_folder, single_thread, world

__all__ = ["command", "hub", "inputs", "published_files", "run_folder", "single_thread", "world"]


@pytest.fixture(scope="session")
def rows(world: World) -> Rows:
    return held_out(world.rows)


@pytest.fixture(scope="session")
def vocabulary(world: World) -> Vocabulary:
    return load_vocabulary(str(world.base))


@pytest.fixture(scope="session")
def reader(vocabulary: Vocabulary) -> Reader:
    return Reader(vocabulary, (SourceRecord(name="novels"), SourceRecord(name="laws", language="ar")))


@pytest.fixture
def row(vocabulary: Vocabulary) -> Callable[..., Row]:
    """Makes a row of one document of each text, from the first and the second source in turn."""

    def make(*texts: str, **columns: object) -> Row:
        special = vocabulary.special
        pieces = [[*vocabulary.tokenizer.encode(text, add_special_tokens=False).ids, special.sep] for text in texts]
        starts = np.cumsum([1, *map(len, pieces)])[:-1]
        ids = np.array([special.cls, *itertools.chain(*pieces)])
        return Row(ids, starts, np.arange(len(texts)) % 2, **columns)

    return make


@pytest.fixture
def inspected(command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs longmlm inspect, and returns what it prints."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        command("inspect", *arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs longmlm inspect, which must fail with exit code 2 and one line, and returns this line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            command("inspect", *arguments)
        out, error = capsys.readouterr()
        assert (stop.value.code, out, error.count("\n")) == (2, "", 1), (out, error)
        return error

    return run
