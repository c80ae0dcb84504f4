"""Chooses an arm and a learning rate within a given time, by rounds of trials that each decide about the next."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.trials import BudgetRecord, Trial, accuracy_of
from longmlm.errors import ConfigError
from longmlm.settings.compare import (
    CANDIDATES,
    LEARNING_RATE,
    NUM_STEPS,
    WINDOW_CANDIDATES,
    ComparedPipeline,
    budget_minutes,
)
from longmlm.settings.tables import Table, table_at
from longmlm.trials.planned import FOLDER, planned_trial, sha256_of_json
from longmlm.trials.running import Trials, base_sha256, rows_sha256

PROBE_STEPS, MIN_STEPS = 10, 20
RATE_FACTORS = ((1.0, 2.0, 4.0, 8.0), (1.0, 4.0))
NUM_FINALISTS = 2
KEPT_RECIPE = (  # of the extend stage, whichever initialisation is chosen
    "num_positions",
    "add_tokens",
    "new_head",
    "attention_window",
    "num_global_tokens",
)


def with_candidates(config: ComparedPipeline) -> ComparedPipeline:
    """Returns the settings with the recommended initialisations as arms, each with its own default settings."""
    tables: Table = {**config.tables}
    if "extend" in tables:
        recipe = {name: value for name, value in table_at(tables, "extend", "recipe").items() if name in KEPT_RECIPE}
        tables["extend"] = {**tables["extend"], "recipe": recipe}
    has_window = config.extend is not None and config.extend.recipe.attention_window is not None
    arms = WINDOW_CANDIDATES if has_window else CANDIDATES
    return replace(config, tables=tables, compare=replace(config.compare, arms=arms))


def run_within_budget(config: ComparedPipeline, trials: Trials) -> None:
    """Runs three rounds of trials; what the first one decides is recorded, so that the same command goes on with it.

    Every arm makes a few steps; the best two are trained with several learning rates, for as many steps as the rest of
    the budget allows; the best two of these trials are repeated with a second seed. All rounds rank by accuracy.
    """
    first, second = (*config.compare.seeds, config.compare.seeds[0] + 1)[:2]
    probes = [planned_trial(config, arm, {NUM_STEPS: PROBE_STEPS}, first) for arm in config.compare.arms]
    measured = trials.run(probes, len(probes))
    trials.probes, trials.finished = measured, []
    if not measured:
        return
    given = config.compare.values.get(LEARNING_RATE)
    inputs = [rows_sha256(probes[0]), base_sha256(probes[0]), given]
    sha256 = sha256_of_json([*({"folder": str(probe.folder), **probe.stages} for probe in probes), *inputs])
    seconds_failed = math.fsum(trial.seconds for trial in trials.failed)
    chosen = recorded_choice(config, measured, len(probes) - len(trials.failed), seconds_failed, sha256)
    values = [{NUM_STEPS: chosen.num_steps, LEARNING_RATE: rate} for rate in chosen.rates]
    searched = [planned_trial(config, arm, one, first) for arm in chosen.arms for one in values]
    num_trials = len(probes) + len(searched) + min(NUM_FINALISTS, len(searched))
    best = ranked(trials.run(searched, num_trials))[:NUM_FINALISTS]
    trials.run([planned_trial(config, trial.arm, trial.values, second) for trial in best], num_trials)


def recorded_choice(
    config: ComparedPipeline, probes: Sequence[Trial], num_candidates: int, seconds_failed: float, sha256: str
) -> BudgetRecord:
    """Returns what was chosen earlier with this budget and these probes, or else chooses now, and records it."""
    file = Path(config.output) / FOLDER / BudgetRecord.FILE
    budget = config.budget or ""
    if file.is_file():
        record = artifact.read(BudgetRecord, file)
        if (record.budget, record.probes_sha256) == (budget, sha256):
            return record
    arms = tuple(trial.arm for trial in ranked(probes)[:NUM_FINALISTS])
    num_steps, rates = affordable(config, probes, num_candidates, seconds_failed)
    record = BudgetRecord(budget=budget, probes_sha256=sha256, arms=arms, num_steps=num_steps, rates=rates)
    artifact.write(file, record)
    return record


def affordable(
    config: ComparedPipeline, probes: Sequence[Trial], num_candidates: int, seconds_failed: float
) -> tuple[int, tuple[float, ...]]:
    """Returns the steps of each further trial, and the learning rates, that the budget has time for.

    `num_candidates` counts the probes that have finished or are yet to run; failed ones took `seconds_failed` in all.

    Raises ConfigError if that is less than MIN_STEPS steps with the fewest learning rates, as it always is if the
    budget was spent before all candidates were probed.
    """
    per_step = statistics.median(trial.training_seconds / PROBE_STEPS for trial in probes)
    start_up = statistics.median(trial.seconds - trial.training_seconds for trial in probes)
    spent = num_candidates * statistics.fmean(trial.seconds for trial in probes) + seconds_failed
    num_arms = min(NUM_FINALISTS, num_candidates)
    left = 60 * budget_minutes(config.budget or "") - spent
    rate, given = config.pretrain.recipe.learning_rate, config.compare.values.get(LEARNING_RATE)
    choices = [tuple(given)] if given else [tuple(rate * factor for factor in factors) for factors in RATE_FACTORS]
    totals = [(num_arms * len(rates) + min(NUM_FINALISTS, num_arms * len(rates)), rates) for rates in choices]
    for num_trials, rates in totals:
        if (num_steps := int((left / num_trials - start_up) / per_step)) >= MIN_STEPS:
            return num_steps, rates
    needed = (spent + totals[-1][0] * (start_up + MIN_STEPS * per_step)) / 60
    raise ConfigError(f"the budget is too short for this model and corpus: set it to {needed + 1:.0f}m or more")


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials by accuracy after training, the highest first."""
    return sorted(trials, key=lambda trial: -accuracy_of(trial.after))
