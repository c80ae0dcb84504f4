"""What the precision `auto` means: a test says whether the machine has bf16 instructions, whatever it has.

The environment variable BF16 is 1 or 0, also in the processes that a test starts. Without it, it is an error to ask:
the result would depend on the machine.
"""

import os
from collections.abc import Callable, Sequence
from types import ModuleType

from tests.support.changed_imports import change_on_import

MODULE = "longmlm.runtime.launch"
VARIABLE = "BF16"
MEANINGS = {"0": "no", "1": "bf16"}
of_machine: dict[str, Callable[[], bool]] = {}  # the function of the module that asks the machine


def force() -> None:
    """Makes the variable decide whether the machine has bf16 instructions."""
    change_on_import(MODULE, _ask_the_variable)


def said(*default: str) -> Sequence[str]:
    """Returns the values of the variable that a test runs with: the one that is set, or else the default ones."""
    return [os.environ[VARIABLE]] if VARIABLE in os.environ else default


def _ask_the_variable(module: ModuleType) -> None:
    of_machine["has_bf16"], module.has_bf16 = module.has_bf16, has_bf16


def has_bf16() -> bool:
    """Returns what the variable says."""
    if VARIABLE not in os.environ:
        raise AssertionError("the machine decides what auto means: name a precision, or use the fixture auto_precision")
    return {"0": False, "1": True}[os.environ[VARIABLE]]
