"""Settings of the compare command: the arms of an experiment, each an overlay on one pipeline, and the seeds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from longmlm.settings.arms import check_arm_name, check_is_arm, check_seeds
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.tables import leaves

NUM_STEPS, LEARNING_RATE = "pretrain.recipe.num_steps", "pretrain.recipe.learning_rate"
CHOSEN_BY_BUDGET = (
    *(LEARNING_RATE, NUM_STEPS, "pretrain.recipe.schedule", "pretrain.recipe.warmup_steps"),
    *("pretrain.recipe.decay_steps", "pretrain.runtime.evaluate_every_steps", "pretrain.runtime.save_every_steps"),
)
WINDOW_CANDIDATES: dict[str, dict[str, Any]] = {
    name: {"extend": {"recipe": {"initialisation": name}}} for name in ("tile", "fitted", "stretched", "hierarchical")
}
CANDIDATES = {  # what a budget chooses from unless arms are given; tile is for windows
    name: arm for name, arm in WINDOW_CANDIDATES.items() if name != "tile"
}
MAX_BUDGET_SEEDS = 2
MINUTES_PER_UNIT = {"m": 1, "h": 60, "d": 24 * 60}
FIXED = {  # what no arm may change, and no search
    "output": "each trial has a folder of its own",
    "until": "set compare.until, for all arms",
    "pretrain.recipe.seed": "set compare.seeds",
    "extend.recipe.seed": "set compare.seeds",
    "pretrain.rows": "trials are trained on the rows that prepare packs",
    "evaluate.rows": "trials are evaluated on the rows that prepare packs",
    "pretrain.dry_run": "trials train",
    "pretrain.runtime.stop_when_recovered": "trials are trained to their last step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What is compared: arms, settings to try for every arm, and seeds."""

    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """One table per arm, [compare.arms.NAME], with the keys of the pipeline that this arm changes."""
    search: dict[str, Any] = field(default_factory=dict)
    """Settings to try for every arm, each with a list of values, such as pretrain.recipe.learning_rate = [1e-4, 3e-4].
    All combinations run with the first seed, the best one of each arm with the other seeds too."""
    seeds: tuple[int, ...] = (42,)
    """Seeds of order, masks and dropout; a random initialisation takes them too. They replace those of the pipeline."""
    baseline: str | None = None
    """Arm that the others are compared with; by default the first that is not the control arm."""
    control: str | None = None
    """Arm that trains the base model at its own length (extension = false): what adapting to the corpus alone gains."""
    until: Literal["pretrain", "evaluate"] = "pretrain"
    """Last stage of each trial. evaluate also measures what context beyond the base model's length is worth."""
    keep_weights: bool = False
    """Keep the checkpoints and the extended model of every trial; by default only what was measured is kept."""

    def __post_init__(self) -> None:
        self._check_names()
        check_seeds(self.seeds)
        for name, values in leaves(self.search):
            if not isinstance(values, list) or not values:
                raise ValueError(f"search.{name} needs a list of values to try")
            if repeated := [value for number, value in enumerate(values) if value in values[:number]]:
                raise ValueError(f"search.{name}: {repeated[0]} is listed twice")
            arms = (arm for arm, table in self.arms.items() if name in dict(leaves(table)))
            for arm in (arm for arm in arms if not (name == "length" and self.arms[arm].get("extension") is False)):
                raise ValueError(f"arms.{arm} sets {name}, which search tries for every arm: remove one of them")
        tables = {"search": self.search, **{f"arms.{name}": arm for name, arm in self.arms.items()}}
        for where, name in ((where, name) for where, table in tables.items() for name, _ in leaves(table)):
            if name in FIXED:
                raise ValueError(f"{where}.{name}: remove it: {FIXED[name]}")

    def _check_names(self) -> None:
        """Raises ValueError for a name that no arm can have, and for a baseline or control arm that cannot be one."""
        for name in (name for name in (*self.arms, self.baseline, self.control) if name is not None):
            check_arm_name(name)
        check_is_arm("baseline", self.baseline, self.arms)
        check_is_arm("control", self.control, self.arms)
        if self.baseline is not None and self.baseline == self.control:
            raise ValueError("baseline and control must be different arms")
        if self.control is not None and len(self.arms) == 1:
            raise ValueError(f"control = {self.control} is the only arm: add one to compare")

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values to try, by the dotted name of the setting."""
        return {name: list(values) for name, values in leaves(self.search) if isinstance(values, list)}

    @property
    def reference(self) -> str:
        """The baseline as given, or the first arm that is not the control arm."""
        return self.baseline or next(name for name in self.arms if name != self.control)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPipeline(ResolvedPipeline):
    """Compares variants of a pipeline, such as initialisations, on the same rows and masks; resumes trial by trial.

    Each arm is a table [compare.arms.NAME] in the TOML file, with the pipeline settings that differ in this arm.
    """

    compare: CompareSettings = field(default_factory=CompareSettings)
    budget: str | None = None
    """Time for choosing an initialisation and a learning rate for this model and corpus, such as 1h or 90m."""
    tables: dict[str, Any] = field(default_factory=dict)
    """The pipeline as given, on which the arms are overlaid; filled in by longmlm."""

    def __post_init__(self) -> None:
        super(ComparedPipeline, self).__post_init__()
        if self.budget is None and not self.compare.arms:
            raise ValueError("set arms under [compare.arms.NAME], or give a budget to choose from the recommended ones")
        if self.pretrain.dry_run:
            raise ValueError(f"pretrain.dry_run: remove it: {FIXED['pretrain.dry_run']}")
        if self.budget is not None:
            budget_minutes(self.budget)
            for problem in self._problems_with_budget():
                raise ValueError(f"budget: {problem}")
        self._check_own_length()

    def _check_own_length(self) -> None:
        """Raises ValueError for a control arm that is extended, and for an arm that is not but has no length."""
        for name, arm in self.compare.arms.items() if self.extension else ():
            if name == self.compare.control and arm.get("extension") is not False:
                raise ValueError(
                    f"control = {name} trains the base model at its own length: set extension = false and length in "
                    f"arms.{name}"
                )
            keeps_positions = self.extend is not None and self.extend.recipe.add_tokens is not None
            if arm.get("extension") is False and "length" not in arm and not keeps_positions:
                raise ValueError(f"arms.{name} has extension = false: set its length, the base model's positions")

    def _problems_with_budget(self) -> Iterator[str]:
        """Yields what a budget cannot be used with."""
        if self.compare.control:
            yield "leave control out: the time is spent on arms that compete"
        if others := self.compare.values.keys() - {LEARNING_RATE}:
            yield f"only {LEARNING_RATE} can be searched: remove {' and '.join(sorted(others))}"
        if not self.compare.arms and not self.extension:
            yield "it chooses an initialisation, but extension = false: set arms under [compare.arms.NAME]"
        for name, arm in self.compare.arms.items():
            for key in (key for key in CHOSEN_BY_BUDGET if key in dict(leaves(arm))):
                yield f"the budget chooses {key}: remove it from arms.{name}"
        if len(self.compare.seeds) > MAX_BUDGET_SEEDS:
            yield f"it tries {MAX_BUDGET_SEEDS} seeds, compare.seeds has {len(self.compare.seeds)}: remove the others"
        if not self.compare.arms and self.extend and self.extend.recipe.mode == "generated":
            yield "generated positions allow few initialisations: set arms under [compare.arms.NAME]"


def budget_minutes(budget: str) -> float:
    """Returns the minutes of a budget such as 1h, 1.5h or 90m; raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", budget)
    if not match or not float(match[1]):
        raise ValueError(f"budget = {budget}: write a number with a unit, such as 90m, 1h or 1d")
    return float(match[1]) * MINUTES_PER_UNIT[match[2]]
