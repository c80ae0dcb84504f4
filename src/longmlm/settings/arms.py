"""Checks of the settings that the commands for comparisons share: names of arms, and seeds."""

import re
from collections.abc import Collection


def check_arm_name(name: str) -> None:
    """Raises ValueError for a name that cannot be that of a folder."""
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ValueError(f"arm {name!r}: a name may contain only letters, digits, -, _, + and .")


def check_is_arm(role: str, name: str | None, arms: Collection[str]) -> None:
    """Raises ValueError if the arm that is to play a role, such as the baseline, does not exist."""
    if name is not None and name not in arms:
        raise ValueError(f"{role} = {name}: there is no such arm, only {', '.join(arms)}")


def check_seeds(seeds: tuple[int, ...]) -> None:
    """Raises ValueError unless there are seeds, all different."""
    if not seeds or len({*seeds}) < len(seeds):
        raise ValueError("seeds must be different numbers, at least one")
