"""Changes modules of longmlm when they are imported, without importing anything of longmlm itself.

Used by tests/conftest.py and, in the processes that tests start, by children/sitecustomize.py, whose folder is on their
PYTHONPATH.
"""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Finder(MetaPathFinder):
    """Finds a module as the finders after it do, and changes it when it has been executed."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, name, path, target=None) -> ModuleSpec | None:
        if name != self.name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(found for finder in others if (found := finder.find_spec(name, path, target)))
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_change
        return spec


def change_on_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Calls `change` with the module of this name as soon as it is imported."""
    sys.meta_path.insert(0, Finder(name, change))
