"""Fixtures of small runs in this process."""

from tests.support.training import half_trained, inputs, no_account, settings, train

__all__ = ["half_trained", "inputs", "no_account", "settings", "train"]
