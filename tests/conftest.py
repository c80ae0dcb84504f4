"""The environment of every test: no network, few threads, types and tensor shapes checked against the signatures."""

import gc
import os
import typing
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads sleep: other processes share the cores

import beartype
import jaxtyping
import pytest
import torch

from tests.support import precision, untrained


def checked(function):
    """Returns the function under beartype, unless it returns Self, which beartype understands in whole classes only."""
    return function if typing.Self in getattr(function, "__annotations__", {}).values() else beartype.beartype(function)


jaxtyping.install_import_hook("longmlm", f"{__name__}.checked")
untrained.allow()
precision.force()
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


@pytest.fixture(scope="module", params=precision.said(*precision.MEANINGS), ids=precision.MEANINGS.get)
def auto_precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `auto` means: fp32, then bf16, or one of them if BF16 says so for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(precision.VARIABLE, request.param)
        yield precision.MEANINGS[request.param]


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> None:
    """Keeps imported modules out of garbage collections: one takes as long as a small run, and a run does two."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
