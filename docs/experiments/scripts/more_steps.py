"""Compares learning-rate schedules for steps that are added to a finished run, on the bundled model.

    nice -n 5 python docs/experiments/scripts/more_steps.py OUTPUT

For each seed, a run of 60 steps is made with docs/experiments/mini.toml. Each schedule then continues a copy of that
run; "anew" is a single run of as many steps. OUTPUT/results.json has the held-out accuracies; runs in it are not
repeated.
"""

import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from longmlm.__main__ import main
from longmlm.artifacts.metrics import MetricsFile
from longmlm.settings.pretrain import PretrainRecipe

Evaluations = list[tuple[int, float, float]]  # step, accuracy in percent, loss in nats
SEEDS, ADDED, STEPS = (42, 43, 44), (30, 60), 60
RESULTS = "results.json"
EVERY = ("--pretrain.runtime.evaluate-every-steps", "30")
MINI = str(Path(__file__).parents[1] / "mini.toml")
SCHEDULES = {  # warm-up and decay as shares of the added steps
    "constant, decay in the last 20 %": (0.0, 0.2),
    "constant, decay in the last 50 %": (0.0, 0.5),
    "decay from the first step": (0.0, 1.0),
    "warm-up of 10 %, then decay": (0.1, 0.9),
}


def continued(warmup: float, decay: float) -> Callable[[PretrainRecipe, int], PretrainRecipe]:
    """Returns a method that replaces PretrainRecipe.for_added_steps and gives added steps this schedule."""

    def with_schedule(recipe: PretrainRecipe, num_steps: int) -> PretrainRecipe:
        steps = {"warmup_steps": math.ceil(num_steps * warmup), "decay_steps": round(num_steps * decay)}
        return replace(recipe, num_steps=num_steps, schedule="constant-then-decay", **steps)

    return with_schedule


def longmlm(*words: str, schedule: str = "") -> None:
    """Runs a command in a process of its own, with one thread."""
    command = [sys.executable, __file__, "child", schedule, *words]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, check=True)


def accuracies(run: Path) -> Evaluations:
    """Returns step, accuracy and loss of each evaluation."""
    lines = MetricsFile(run).evaluations()
    return [(line.step, line.held_out.whole.accuracy or 0.0, line.held_out.whole.loss or 0.0) for line in lines]


def study(output: Path) -> None:
    """Makes the missing runs, and prints the accuracy at the end of each."""
    path = output / RESULTS
    results = json.loads(path.read_text()) if path.is_file() else {}
    longmlm("run", "demo", MINI, *EVERY, "--output", str(output), "--until", "prepare")
    for seed in SEEDS:
        if (name := f"finished/0/{seed}") not in results:
            finished = output / f"finished-{seed}"
            longmlm("pretrain", str(output / "pipeline.toml"), "--run", str(finished), "--recipe.seed", str(seed))
            results[name] = accuracies(finished)
        for schedule in SCHEDULES:
            add_run(results, output, seed, ADDED[0], schedule)
    for added, seed, schedule in itertools.product(ADDED[1:], SEEDS, SCHEDULES):
        add_run(results, output, seed, added, schedule)
    for seed, added in itertools.product(SEEDS, ADDED):
        add_run(results, output, seed, added, "anew")
    report(results)


def add_run(results: dict[str, Evaluations], output: Path, seed: int, added: int, schedule: str) -> None:
    """Continues the finished run with a schedule, or makes one run of as many steps, and adds its evaluations."""
    if (name := f"{schedule}/{added}/{seed}") in results:
        return
    run, options = output / "run", ("--run", str(output / "run"), "--recipe.seed", str(seed))
    shutil.rmtree(run, ignore_errors=True)
    if schedule == "anew":
        longmlm("pretrain", str(output / "pipeline.toml"), *options, "--recipe.num-steps", str(STEPS + added))
    else:
        shutil.copytree(output / f"finished-{seed}", run)
        longmlm("pretrain", str(output / "pipeline.toml"), *options, "--more-steps", str(added), schedule=schedule)
    results[name] = accuracies(run)
    (output / RESULTS).write_text(json.dumps(results, indent=1))


def report(results: Mapping[str, Evaluations]) -> None:
    """Prints a line for each schedule and number of added steps: accuracy and loss at the end, means over the seeds."""
    for name in dict.fromkeys(name.rpartition("/")[0] for name in results):
        ends = [results[f"{name}/{seed}"][-1] for seed in SEEDS if f"{name}/{seed}" in results]
        accuracy, loss = (statistics.mean(end[place] for end in ends) for place in (1, 2))
        print(f"{name:45} {accuracy:.2f} ({' '.join(f'{end[1]:.2f}' for end in ends)}) loss {loss:.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "child":
        chosen = sys.argv[2]
        if chosen in SCHEDULES:
            PretrainRecipe.for_added_steps = continued(*SCHEDULES[chosen])  # pyrefly: ignore
        del sys.argv[1:3]
        main()
    else:
        study(Path(sys.argv[1]))
