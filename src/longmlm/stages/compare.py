"""The compare command: runs every trial of a comparison as a process, and reports what they measured.

OUTPUT/
    rows/                               shared by all trials that prepare text as the pipeline does
    compare/
        ARM/VALUES/seed-42/             a trial: trial.toml, log.txt, and what longmlm run writes
        comparison.json, index.html     the results so far, with the charts, written again after every trial
        pipeline.toml                   the pipeline with the best arm and its values
"""

import functools
import hashlib
import itertools
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from longmlm.artifacts import artifact
from longmlm.artifacts.comparison import Comparison, Trial, accuracy_of, arm_of, rank, worded
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.run import RunSummary
from longmlm.config import resolved_pipeline, to_toml
from longmlm.errors import ConfigError, TrainingError
from longmlm.processes import exclusive_lock
from longmlm.reports.comparison import arms_table, finding, write_comparison
from longmlm.reports.pages import PAGE_FILE
from longmlm.reports.tables import text_table
from longmlm.runtime.children import run_child
from longmlm.settings.compare import CANDIDATES, ComparedPipeline, budget_minutes
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.tables import Table, merged, table_of

FOLDER, TRIAL, LOG, PIPELINE = "compare", "trial.toml", "log.txt", "pipeline.toml"
WEIGHTS = ("long", "run/checkpoints")
NUM_STEPS, LEARNING_RATE = "pretrain.recipe.num_steps", "pretrain.recipe.learning_rate"
PROBE_STEPS, MIN_STEPS = 10, 20
RATE_FACTORS = (1.0, 2.0, 4.0, 8.0)
NUM_FINALISTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A trial to run, in its own folder, with the text of the pipeline file that describes it."""

    arm: str
    values: dict[str, Any]
    seed: int
    folder: Path
    pipeline: str

    @property
    def name(self) -> str:
        """The trial in words."""
        return ", ".join([self.arm, *worded(self.values), f"seed {self.seed}"])


def compare(config: ComparedPipeline) -> None:
    """Runs the trials that are not finished, then writes and prints the comparison.

    Raises ConfigError, before any trial starts, for an arm that is no valid pipeline, and for a budget that is too
    short; TrainingError for a trial that fails.
    """
    folder = Path(config.output) / FOLDER
    with exclusive_lock(folder):
        if config.budget and not config.compare.arms:
            config = replace(config, compare=replace(config.compare, arms=CANDIDATES))
        trials = budgeted_trials(config) if config.budget else all_trials(config)
        comparison = write_results(config, trials)
        best = comparison.arms()[0]
        tables = with_values(config, best.name, best.values)
        said = finding(comparison)
        (folder / PIPELINE).write_text(f"# {said}\n{tomli_w.dumps(tables)}", encoding="utf-8")
        print(text_table(arms_table(comparison)), f"page: {folder / PAGE_FILE}", said, sep="\n")
        print(f"to continue with the best arm: longmlm run {folder / PIPELINE}")


def all_trials(config: ComparedPipeline) -> list[Trial]:
    """Runs each arm with every combination of the searched values, then the best of each with the other seeds."""
    first, *others = config.compare.seeds
    arms, searched = config.compare.arms, config.compare.values
    plans = [plan(config, arm, values, first) for arm in arms for values in combinations(searched)]
    num_trials = len(plans) + len(others) * len(arms)
    results = run_trials(config, plans, [], num_trials)
    for arm in arms:
        values = arm_of(results, arm).values
        results = run_trials(config, [plan(config, arm, values, seed) for seed in others], results, num_trials)
    return results


def budgeted_trials(config: ComparedPipeline) -> list[Trial]:
    """Chooses an arm and a learning rate within the budget, by rounds of trials that each decide about the next.

    Every arm makes a few steps; the best two are trained with several learning rates, for as many steps as the rest of
    the budget allows; the best two of these trials are repeated with a second seed.
    """
    seed, rate = config.compare.seeds[0], config.pretrain.recipe.learning_rate
    probes = [plan(config, arm, {NUM_STEPS: PROBE_STEPS}, seed) for arm in config.compare.arms]
    results = run_trials(config, probes, [], len(probes))
    arms = sorted((arm_of(results, name) for name in config.compare.arms), key=rank)[:NUM_FINALISTS]
    num_steps, factors = affordable(results, 60 * budget_minutes(config.budget or ""), len(arms))
    values = [{NUM_STEPS: num_steps, LEARNING_RATE: rate * factor} for factor in factors]
    searched = [plan(config, arm.name, chosen, seed) for arm in arms for chosen in values]
    num_trials = len(probes) + len(searched) + NUM_FINALISTS
    results = run_trials(config, searched, results, num_trials)
    best = sorted(results[len(probes) :], key=lambda trial: -accuracy_of(trial.after))[:NUM_FINALISTS]
    return run_trials(config, [plan(config, it.arm, it.values, seed + 1) for it in best], results, num_trials)


def affordable(probes: Sequence[Trial], seconds: float, num_arms: int) -> tuple[int, tuple[float, ...]]:
    """Returns the steps of each further trial, and the factors on the learning rate, that the budget has time for.

    Raises ConfigError if that is less than MIN_STEPS steps with two learning rates.
    """
    per_step = statistics.median(trial.training_seconds / PROBE_STEPS for trial in probes)
    start_up = statistics.median(trial.seconds - trial.training_seconds for trial in probes)
    left = seconds - sum(trial.seconds for trial in probes)
    for factors in (RATE_FACTORS, RATE_FACTORS[::2]):
        num_trials = num_arms * len(factors) + NUM_FINALISTS
        if (num_steps := int((left / num_trials - start_up) / per_step)) >= MIN_STEPS:
            return num_steps, factors
    needed = seconds - left + num_trials * (start_up + MIN_STEPS * per_step)
    raise ConfigError(f"the budget is too short for this model and corpus: set it to {needed / 60 + 1:.0f}m or more")


def combinations(searched: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every combination of the values to try; a single empty one if there are none."""
    return [dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())]


def plan(config: ComparedPipeline, arm: str, values: dict[str, Any], seed: int) -> Plan:
    """Returns a trial's plan; raises ConfigError if its settings are no valid pipeline."""
    folder = Path(config.output) / FOLDER / arm / (",".join(worded(values)).replace(" ", "-") or "as-given")
    folder /= f"seed-{seed}"
    own: Table = {"output": str(folder), "until": config.compare.until, "pretrain": {"recipe": {"seed": seed}}}
    tables = merged(with_values(config, arm, values), own)
    if tables.get("extension", True):
        tables = merged(tables, {"extend": {"recipe": {"seed": seed}}})
    try:
        resolved = resolved_pipeline(tables)
    except ConfigError as error:
        raise ConfigError(f"arm {arm}: {error}") from None
    rows = {"rows": rows_of(config, resolved)}
    tables = merged(tables, {"prepare": {"output": rows["rows"]}, "pretrain": rows, "release": rows})
    tables = merged(tables, {"evaluate": rows}) if resolved.evaluate else tables
    return Plan(arm=arm, values=values, seed=seed, folder=folder, pipeline=tomli_w.dumps(tables))


def with_values(config: ComparedPipeline, arm: str, values: Mapping[str, Any]) -> Table:
    """Returns the pipeline's tables with those of the arm, and then the values, merged over them."""
    tables = merged(config.tables, config.compare.arms[arm])
    tables = functools.reduce(merged, itertools.starmap(table_of, values.items()), tables)
    return merged(tables, fitted_schedule(values[NUM_STEPS])) if config.budget else tables


def fitted_schedule(num_steps: int) -> Table:
    """Returns a schedule, and intervals, for a run of so few steps."""
    recipe = {"schedule": "linear", "warmup_steps": num_steps // 20, "decay_steps": 0}
    return {"pretrain": {"recipe": recipe, "runtime": {"evaluate_every_steps": max(1, num_steps // 4)}}}


def rows_of(config: ComparedPipeline, trial: ResolvedPipeline) -> str:
    """Returns the folder of a trial's rows, which trials with the same prepare settings share."""
    if trial.prepare.recipe == config.prepare.recipe:
        return config.prepare.output
    name = hashlib.sha256(to_toml(trial.prepare.recipe).encode()).hexdigest()[:8]
    return str(Path(config.output) / FOLDER / f"rows-{name}")


def run_trials(config: ComparedPipeline, plans: Iterable[Plan], done: Sequence[Trial], num_trials: int) -> list[Trial]:
    """Returns the trials that were done before, and those of the plans; writes the results after each."""
    results = [*done]
    for planned in plans:
        label = f"[{len(results) + 1}/{num_trials}] {planned.name}:"
        results.append(run_trial(config, planned, label))
        write_results(config, results)
        before, after = accuracy_of(results[-1].before), accuracy_of(results[-1].after)
        print(f"{label} {before:.2f} % before training, {after:.2f} % after", flush=True)
    return results


def run_trial(config: ComparedPipeline, planned: Plan, label: str) -> Trial:
    """Runs a trial unless it is finished, and returns what it measured; removes its weights unless they are kept."""
    folder, since = planned.folder, time.monotonic()
    file, is_done = folder / TRIAL, (folder / "done" / f"{config.compare.until}.toml").is_file()
    if not (is_done and file.is_file() and file.read_text(encoding="utf-8") == planned.pipeline):
        print(f"{label} started", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(planned.pipeline, encoding="utf-8")
        command = [sys.executable, "-m", "longmlm", "run", str(file)]
        code, stopped_by = run_child(command, os.environ, log=folder / LOG)
        if stopped_by:
            print(f"{label} stopped by {stopped_by}: the same command resumes from there", file=sys.stderr)
            sys.exit(128 + signal.Signals[stopped_by])
        if code:
            last = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise TrainingError(f"{label} failed (exit code {code}): {last}; its output is in {folder / LOG}")
        if not config.compare.keep_weights:
            for name in WEIGHTS:
                shutil.rmtree(folder / name, ignore_errors=True)
    return measured_trial(planned, time.monotonic() - since, config)


def measured_trial(planned: Plan, seconds: float, config: ComparedPipeline) -> Trial:
    """Returns what a finished trial measured; how long it took is known from an earlier comparison if it ran then."""
    run, evaluation = planned.folder / "run", planned.folder / "evaluation" / Evaluation.FILE
    summary = artifact.read(RunSummary, run / RunSummary.FILE)
    file = Path(config.output) / FOLDER / Comparison.FILE
    earlier = artifact.read(Comparison, file).trials if file.is_file() else ()
    known = [
        it.seconds for it in earlier if (it.arm, it.values, it.seed) == (planned.arm, planned.values, planned.seed)
    ]
    return Trial(
        arm=planned.arm,
        values=planned.values,
        seed=planned.seed,
        curve=tuple(MetricsFile(run).evaluations()),
        tokens_per_second=summary.train_tokens_per_second,
        training_seconds=summary.state.training_seconds,
        seconds=known[0] if known else seconds,
        measured=read_evaluation(evaluation).measured if evaluation.is_file() else {},
    )


def write_results(config: ComparedPipeline, trials: Sequence[Trial]) -> Comparison:
    """Writes comparison.json, the charts and the page about the trials so far, and returns the comparison."""
    settings = config.compare
    comparison = Comparison(
        model=config.model or "",
        row_length=config.length,
        plain=settings.plain or next(iter(settings.arms)),
        control=settings.control,
        trials=tuple(trials),
    )
    write_comparison(comparison, Path(config.output) / FOLDER, f"# longmlm compare settings.toml\n{to_toml(config)}")
    return comparison
