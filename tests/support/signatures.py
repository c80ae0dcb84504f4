"""Types and tensor shapes checked against the signatures of longmlm, in a run with TYPES=1: every call takes longer."""

import os
import typing
from collections.abc import Callable

VARIABLE = "TYPES"


def is_asked() -> bool:
    return os.environ.get(VARIABLE) == "1"


def check_if_asked() -> None:
    """Checks every call of longmlm from here on if the variable says so. Nothing of longmlm may be imported yet."""
    if is_asked():
        import jaxtyping

        jaxtyping.install_import_hook("longmlm", f"{__name__}.checked")


def checked(function: Callable) -> Callable:
    """Returns the function under beartype, unless it returns Self, which beartype understands in whole classes only."""
    import beartype

    return function if typing.Self in getattr(function, "__annotations__", {}).values() else beartype.beartype(function)
