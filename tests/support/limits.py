"""Limits of the operating system for this process: the size of a file, and how many are open."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Makes writing more than this many bytes to a file fail in the block, in every language: errno EFBIG."""
    with _limit(resource.RLIMIT_FSIZE, num_bytes):
        yield


@contextmanager
def no_more_files() -> Iterator[None]:
    """Makes opening a file fail in the block: errno EMFILE."""
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    with _limit(resource.RLIMIT_NOFILE, lowest_free):
        yield


@contextmanager
def _limit(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
