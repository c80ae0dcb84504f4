"""The settings of a comparison: its arms, each an overlay on one pipeline, what is searched, and the seeds."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from longmlm.settings.arms import check_arm_name, check_is_arm, check_seeds
from longmlm.settings.masking import Seed
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.tables import FILLED_IN, OVERLAY_OF, VALUES_OF, leaves

LEARNING_RATE = "pretrain.recipe.learning_rate"
RATE_FACTORS = (1.0, 0.5, 2.0)  # the learning rates that are compared unless arms are given
FIXED = {  # what no arm may change, and no search
    "output": "each trial has a folder of its own",
    "until": "set compare.until, for all arms",
    "pretrain.recipe.seed": "set compare.seeds",
    "extend.recipe.seed": "set compare.seeds",
    "rows": "trials are trained and evaluated on the rows that prepare packs",
    "pretrain.dry_run": "trials train",
    "pretrain.more_steps": "trials are trained for num_steps",
    "pretrain.runtime.stop_when_recovered": "trials are trained to their last step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What is compared: arms, settings to try for every arm, and seeds."""

    arms: dict[str, dict[str, Any]] = field(default_factory=dict, metadata={OVERLAY_OF: ResolvedPipeline})
    """One table per arm, [compare.arms.NAME], with the keys of the pipeline that this arm changes. Without arms, the
    pipeline's learning rate is compared with half and with twice that rate."""
    search: dict[str, Any] = field(default_factory=dict, metadata={VALUES_OF: ResolvedPipeline})
    """Settings to try for every arm, each with a list of values, such as pretrain.recipe.learning_rate = [1e-4, 3e-4].
    All combinations run with the first seed, the best one of each arm with the other seeds too."""
    seeds: tuple[Seed, ...] = (42,)
    """Random seeds of row order, masks, dropout, fit and distillation. They replace those of the pipeline."""
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
        if not self.arms and (self.baseline or self.control):
            raise ValueError("baseline and control name arms: set these under [compare.arms.NAME]")
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
    """Compares variants of a pipeline on the same rows and masks: the given arms, or else three learning rates.

    Each arm is a table [compare.arms.NAME] in the TOML file, with the pipeline settings that differ in this arm. The
    same command goes on after an interruption.
    """

    HAS_TRIALS: ClassVar[bool] = True

    compare: CompareSettings = field(default_factory=CompareSettings)
    tables: dict[str, Any] = field(default_factory=dict, metadata={FILLED_IN: True})
    """The pipeline as given, on which the arms are overlaid; filled in by longmlm."""

    def __post_init__(self) -> None:
        super(ComparedPipeline, self).__post_init__()
        for name in ("dry_run", "more_steps"):
            if getattr(self.pretrain, name):
                raise ValueError(f"pretrain.{name}: remove it: {FIXED[f'pretrain.{name}']}")
        if not self.compare.arms:
            object.__setattr__(self, "compare", replace(self.compare, arms=self._rates()))
        self._check_own_length()

    def _rates(self) -> dict[str, dict[str, Any]]:
        """Returns an arm per learning rate, the pipeline's own first; raises ValueError if rates are searched."""
        if LEARNING_RATE in self.compare.values:
            raise ValueError(f"search.{LEARNING_RATE} needs an arm: set one under [compare.arms.NAME]")
        rates = [self.pretrain.recipe.learning_rate * factor for factor in RATE_FACTORS]
        return {f"rate-{rate:g}": {"pretrain": {"recipe": {"learning_rate": rate}}} for rate in rates}

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
