"""Settings of the compare command: the arms of an experiment, each an overlay on one pipeline, and the seeds."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.tables import leaves

CANDIDATES: dict[str, dict[str, Any]] = {  # what a budget chooses from unless arms are given
    name: {"extend": {"recipe": {"initialisation": name}}} for name in ("hierarchical", "averaged", "stretched")
}
MINUTES_PER_UNIT = {"m": 1, "h": 60, "d": 24 * 60}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared: arms, settings to try for every arm, and seeds."""

    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """One table per arm, [compare.arms.NAME], with the keys of the pipeline that this arm changes."""
    search: dict[str, Any] = field(default_factory=dict)
    """Settings to try for every arm, each with a list of values, such as pretrain.recipe.learning_rate = [1e-4, 3e-4].
    All combinations run with the first seed, the best one of each arm with the other seeds too."""
    seeds: tuple[int, ...] = (42,)
    """Seeds of order, masks and dropout; a random initialisation takes them too."""
    plain: str | None = None
    """Arm that the others are compared with; by default the first."""
    control: str | None = None
    """Arm that trains the base model at its own length (extension = false): what adapting to the corpus alone gains."""
    until: Literal["pretrain", "evaluate"] = "pretrain"
    """Last stage of each trial. evaluate also measures what context beyond the base model's length is worth."""
    keep_weights: bool = False
    """Keep the checkpoints and the extended model of every trial; by default only what was measured is kept."""

    def __post_init__(self) -> None:
        for name in (*self.arms, *((self.plain,) if self.plain else ()), *((self.control,) if self.control else ())):
            if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
                raise ValueError(f"arm {name!r}: a name may have letters, digits and -, _, + or . only")
        for role, name in (("plain", self.plain), ("control", self.control)):
            if name is not None and name not in self.arms:
                raise ValueError(f"{role} = {name}: there is no such arm, only {', '.join(self.arms)}")
        if self.plain is not None and self.plain == self.control:
            raise ValueError("plain and control must be different arms")
        if not self.seeds or len({*self.seeds}) < len(self.seeds) or not all(0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError("seeds must be different numbers, at least one, each at least 0 and below 2 ** 63")
        for name, values in leaves(self.search):
            if not isinstance(values, list) or not values:
                raise ValueError(f"search.{name} needs a list of values to try")

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values to try, by the dotted name of the setting."""
        return {name: list(values) for name, values in leaves(self.search) if isinstance(values, list)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPipeline(ResolvedPipeline):
    """Compares variants of a pipeline, such as initialisations, on the same rows and masks; resumes trial by trial."""

    compare: Comparison = field(default_factory=Comparison)
    budget: str | None = None
    """Time for choosing an initialisation and a learning rate for this model and corpus, such as 1h or 90m."""
    tables: dict[str, Any] = field(default_factory=dict)
    """The pipeline as given, on which the arms are overlaid; filled in by longmlm."""

    def __post_init__(self) -> None:
        super(ComparedPipeline, self).__post_init__()
        if self.budget is None and not self.compare.arms:
            raise ValueError("set arms under [compare.arms.NAME], or give a budget to choose from the recommended ones")
        if self.budget is not None:
            budget_minutes(self.budget)


def budget_minutes(budget: str) -> float:
    """Returns the minutes of a budget such as 1h, 1.5h or 90m; raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", budget)
    if not match or not float(match[1]):
        raise ValueError(f"budget = {budget}: write a number with a unit, such as 90m, 1h or 1d")
    return float(match[1]) * MINUTES_PER_UNIT[match[2]]
