"""Training while other jobs use the cores: longmlm, whose idle threads soon sleep, compared with OpenMP's default.

Two endless loops take as much of the cores as they can get while `longmlm pretrain` trains the bundled model. The peer
is the same command with GOMP_SPINCOUNT=300000, GNU OpenMP's default; longmlm sets 100000. The second comparison runs
without the loops; --quick makes that one alone, in two rounds.

    python benchmarks/busy_machine.py [--quick]
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from paired import Comparison, Way, in_a_process, result, run
from start_up import LENGTH, make_rows, pretrain_command

from longmlm.artifacts.metrics import MetricsFile, TrainingMetrics

DEFAULT_SPINS = "300000"
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with the benchmark
JOB = (sys.executable, "-c", LOOP)
NUM_STEPS, ROWS_PER_STEP = 10, 16
NUM_JOBS = 2
NUM_QUICK_ROUNDS = 2  # a round takes 25 s


def training(rows: Path, num_jobs: int, variables: dict[str, str]) -> Callable[[], float]:
    """Returns a function that trains beside this many jobs, and returns the median tokens/s of a step."""
    folder = Path(tempfile.mkdtemp()) / "run"
    options = {
        "recipe.num-steps": NUM_STEPS,
        "recipe.batch-tokens": ROWS_PER_STEP * LENGTH,
        "runtime.save-every-steps": NUM_STEPS,
    }
    command = pretrain_command(folder, rows, options)

    def work() -> float:
        jobs = [subprocess.Popen(JOB) for _ in range(num_jobs)]
        environment = {name: value for name, value in os.environ.items() if name not in SPIN_VARIABLES}
        try:
            subprocess.run(command, env={**environment, **variables}, check=True, stdout=subprocess.DEVNULL)
        finally:
            for job in jobs:
                job.kill()
        lines = [line for line in MetricsFile(folder).lines() if isinstance(line, TrainingMetrics)]
        return statistics.median(line.tokens_per_second for line in lines)

    return work


def comparisons(rows: Path) -> list[Comparison]:
    """Returns the comparison with other jobs, and the one without."""
    return [
        Comparison(
            f"the bundled model, {ROWS_PER_STEP} x {LENGTH} tokens, {condition}",
            Way("longmlm", partial(training, rows, num_jobs, {}), result),
            Way("OpenMP's default", partial(training, rows, num_jobs, {"GOMP_SPINCOUNT": DEFAULT_SPINS}), result),
            aim=aim,
        )
        for num_jobs, condition, aim in ((NUM_JOBS, f"beside {NUM_JOBS} busy processes", 1.2), (0, "alone", 0.95))
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "rows"
        in_a_process(make_rows, folder)
        compared = comparisons(folder)
        run("busy machine", __doc__ or "", compared, compared[1:], NUM_QUICK_ROUNDS)
