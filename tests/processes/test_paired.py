"""Benchmarks run their work in processes that leave no files behind and whose failures are raised."""

import os
import tempfile
from pathlib import Path

import pytest
from paired import in_a_process


def test_a_process_leaves_no_temporary_files_behind():
    assert not Path(in_a_process(tempfile.mkdtemp)).parent.exists()


@pytest.mark.parametrize(("function", "argument"), [(int, "a"), (os._exit, 0)])
def test_a_process_that_returns_nothing_has_failed(function, argument):
    with pytest.raises(RuntimeError, match=f"failed with exit code {int(function is int)}"):
        in_a_process(function, argument)
