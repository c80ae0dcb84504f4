"""benchmarks/gpu.sh: it stays under ten minutes, runs every part and prints the table last, also when a part fails."""

import os
import re
import subprocess
from pathlib import Path

import gpu
import pytest

SCRIPT = Path(gpu.__file__).with_name("gpu.sh")
PYTHON = """#!/bin/sh
echo "$*" >> calls.txt
case "$*" in
  *table*) echo "the table of $(wc -l < out/gpu.jsonl) lines" ;;
  *parity) exit 3 ;;
  *speed) echo '{"case": "measured"}'; kill -TERM $$ ;;
  *) echo '{}' ;;
esac
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs the script in a folder of its own, with a Python that notes its arguments, and fails in two parts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "benchmarks").symlink_to(SCRIPT.parent)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "benchmarks/gpu.sh", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return script


def test_every_part_runs_once_and_the_table_comes_last_with_what_was_measured(run, tmp_path):
    done = run("--device", "cpu")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls == [*(f"benchmarks/gpu.py {part}" for part in gpu.SECTIONS), "benchmarks/gpu.py table out/gpu.jsonl"]
    assert done.stdout.splitlines()[-1] == "the table of 4 lines"
    assert [part for part in gpu.SECTIONS if f"part {part} " in done.stderr] == ["parity", "speed"]


def test_another_argument_is_refused_before_anything_runs(run, tmp_path):
    assert run("--device", "tpu").returncode == 2
    assert not (tmp_path / "calls.txt").exists()


def test_the_parts_leave_forty_seconds_of_ten_minutes_for_the_rest():
    text = SCRIPT.read_text(encoding="utf-8")
    seconds = dict(re.findall(r"(\w+):(\d+)", re.search(r"for part in (.*); do", text)[1]))
    kill_after = int(re.search(r"timeout --kill-after (\d+) ", text)[1])
    assert tuple(seconds) == gpu.SECTIONS
    assert sum(int(number) + kill_after for number in seconds.values()) <= 560
