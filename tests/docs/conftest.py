"""The pages that people read, and what is written in them."""

from pathlib import Path

import pytest

from tests.support.pages import ROOT, Page, pages_of


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    """README.md in both languages, the pages beside it and all of docs/."""
    pages = pages_of(ROOT)
    assert len(pages) > 25
    return pages
