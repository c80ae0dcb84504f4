"""A tiny RoBERTa with its rows."""

from tests.support.worlds import single_thread, world

__all__ = ["single_thread", "world"]
