"""Tiny models are random, so they predict nothing; tests train and evaluate them all the same.

Used by tests/conftest.py and, in the processes that tests start, by children/sitecustomize.py, whose folder is on their
PYTHONPATH. It imports nothing of longmlm: it changes a module when that is imported.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

MODULE = "longmlm.evaluation.frozen"


class Finder(MetaPathFinder):
    """Makes the commonest token rarer than any accuracy; `measured` is the function of the module that finds it."""

    measured = None

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            Finder.measured, module.commonest_share = module.commonest_share, lambda *_: -1.0

        spec.loader.exec_module = execute_and_change
        return spec


def allow() -> None:
    """Lets every base model count as one that predicts something."""
    sys.meta_path.insert(0, Finder())


def refuse(patch) -> None:
    """Makes a base model count for what it is again."""
    patch.setattr(sys.modules[MODULE], "commonest_share", Finder.measured)
