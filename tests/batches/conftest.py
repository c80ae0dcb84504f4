"""A tiny RoBERTa with its rows."""

from tests.support.worlds import world

__all__ = ["world"]
