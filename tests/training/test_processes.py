import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.config import to_toml
from longmlm.training import tracking

ROOT = Path(__file__).parents[2]


def launch(settings, accelerate_yaml: str, folder: Path, *options: str) -> subprocess.CompletedProcess:
    file = folder / "settings.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configs" / "accelerate" / accelerate_yaml), "--main_process_port", "0"),
        *options,
        *(str(ROOT / "pretrain.py"), str(file)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_two_processes_have_the_losses_of_one_with_twice_the_micro_batch(settings, tmp_path):
    settings = replace(settings, recipe=replace(settings.recipe, dropout=0.0))
    found = {}
    for num_processes, yaml in ((1, "single.yaml"), (2, "two-cpu-processes.yaml")):
        run = tmp_path / str(num_processes)
        runtime = replace(
            settings.runtime, rows_per_micro_batch=8 // num_processes, num_processes=num_processes, num_threads=1
        )
        done = launch(replace(settings, run=str(run), runtime=runtime), yaml, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        found[num_processes] = tracking.read(run)
    one, two = ([line["loss"] for line in found[count] if "loss" in line] for count in (1, 2))
    assert len(one) == 12
    assert two == pytest.approx(one, rel=1e-5)
    tokens = [[line["tokens"] for line in found[count]] for count in (1, 2)]
    assert tokens[0] == tokens[1]
    held_out = [[line["held_out"]["whole"]["loss"] for line in found[count] if "held_out" in line] for count in (1, 2)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-5)


@pytest.mark.parametrize("option", [["--num_processes", "2"], ["--num_processes", "2", "--cpu"]])
def test_a_launch_that_starts_one_process_for_two_is_refused_in_one_line(settings, tmp_path, option):
    done = launch(settings, "single.yaml", tmp_path, *option)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0
    assert len(said) == 1 and "was to start 2 processes and started 1 alone" in said[0]
    assert not Path(settings.run).exists()


def test_a_launch_with_another_number_of_processes_than_meant_is_refused_in_one_line(settings, tmp_path):
    runtime = replace(settings.runtime, num_processes=2)
    done = launch(replace(settings, runtime=runtime), "single.yaml", tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0
    assert len(said) == 1 and "runtime.num_processes is 2, but 1 were started" in said[0]
    assert 'Traceback (most recent call last):\n  File "/' not in done.stderr.split("error: ")[0]
    assert not Path(settings.run).exists()
