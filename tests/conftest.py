"""The environment of every test: no network, few threads; signatures are checked if the variable TYPES asks for it."""

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads sleep: other processes share the cores

import pytest

from tests.support import accepted as texts
from tests.support import precision, signatures, threads, untrained

signatures.check_if_asked()
threads.limit()
untrained.allow()
precision.force()


@pytest.fixture(scope="module", params=precision.said(*precision.MEANINGS), ids=precision.MEANINGS.get)
def auto_precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `auto` means: fp32, then bf16, or one of them if BF16 says so for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(precision.VARIABLE, request.param)
        yield precision.MEANINGS[request.param]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-pages", action="store_true", help="accept pages, cards and reports as they are now")


@pytest.fixture
def accepted(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of this name in tests/accepted."""
    return partial(texts.check, is_accepted=request.config.getoption("--update-pages"))


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> None:
    """Keeps imported modules out of garbage collections: one takes as long as a small run, and a run does two."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
