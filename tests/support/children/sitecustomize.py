"""Imported by Python when a child of a test starts."""

from tests.support import untrained

untrained.allow()
