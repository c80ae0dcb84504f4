"""Fixtures: fake hubs, and a folder to publish."""

from pathlib import Path

import pytest

from tests.support.served import hub, make, served, waits

__all__ = ["hub", "served", "waits"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder like a release."""
    return make(tmp_path / "tiny")
