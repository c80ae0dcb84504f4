"""Rows of a tiny world, and the reader of their tokens."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from longmlm.artifacts.rows import SourceRecord
from longmlm.data.row import Row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.inspect.reading import Reader
from tests.support.commands import command, printed, refusal
from tests.support.hub_rows import hub, published_files
from tests.support.tiny import World, held_out
from tests.support.training import drawn, inputs, settings, train
from tests.support.worlds import run_folder, world

__all__ = [
    "command",
    "drawn",
    "hub",
    "inputs",
    "printed",
    "published_files",
    "refusal",
    "run_folder",
    "settings",
    "train",
    "world",
]


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
def inspected(printed: Callable[..., str]) -> Callable[..., str]:
    """Runs longmlm inspect, and returns what it prints."""
    return partial(printed, "inspect")


@pytest.fixture
def refused(refusal: Callable[..., str]) -> Callable[..., str]:
    """Runs longmlm inspect, which must fail with exit code 2 and one line, and returns this line."""
    return partial(refusal, "inspect")
