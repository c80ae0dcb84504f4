"""Tiny models are random, so they predict nothing; tests train and evaluate them all the same."""

import sys
from types import ModuleType

from tests.support.changed_imports import change_on_import

MODULE = "longmlm.evaluation.frozen"
measured = {}  # the function of the module that finds how frequent the commonest token is


def allow() -> None:
    """Lets every base model count as one that predicts something."""
    change_on_import(MODULE, _make_rare)


def _make_rare(module: ModuleType) -> None:
    """Makes the commonest token rarer than any accuracy."""
    measured["commonest_share"] = module.commonest_share
    module.commonest_share = lambda *_: -1.0


def refuse(patch) -> None:
    """Makes a base model count for what it is again."""
    for name, function in measured.items():
        patch.setattr(sys.modules[MODULE], name, function)
