"""Benchmarks compare, print one JSON object and appear in the report; the program for a GPU runs every part."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpu
import micro_batch_memory
import paired
import pytest
import report
from paired import Comparison, Measured, Way

ENTRY = {"shape", "ours", "peer", "ratio", "unit", "aim", "met"}
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


def test_a_comparison_is_printed_as_one_object_and_stands_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    found = [Measured(300, 300, 300, 1.0), Measured(100, 100, 100, 2.5)]
    monkeypatch.setattr(paired, "_measure_alternately", lambda ways, _: found[: len(ways)])
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--quick"])
    ways = [Way(name, lambda: lambda: 0) for name in ("ours", "peer")]
    done = [Comparison("work", *ways, aim=2, memory_aim=3).measure(1), Comparison("alone", ways[0], None).measure(1)]
    paired.print_results("step", done)
    one = last_object(capsys)
    assert (one["name"], one["ratio"], one["met"], one["is_quick"]) == ("step", 3, False, True)
    assert one.keys() >= ENTRY and [other["peer"] for other in one["others"]] == [None]
    assert [line.split()[:3] for line in report.table([one]).splitlines()[1:]] == [
        ["300", "100", "3.00"],
        ["300", "-", "-"],
    ]


def test_the_memory_benchmark_compares_the_cost_model_in_every_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["micro_batch_memory.py", "--quick"])
    monkeypatch.setattr(micro_batch_memory, "measured_bytes", micro_batch_memory.predicted_bytes)
    for name in ("BASE", "LARGE"):
        monkeypatch.setattr(micro_batch_memory, name, replace(getattr(micro_batch_memory, name), num_layers=1))
    micro_batch_memory.main()
    found = last_object(capsys)
    entries = [found, *found["others"]]
    assert len(entries) == 3 + len(micro_batch_memory.MODES)
    assert all(entry.keys() >= ENTRY for entry in entries)


def test_the_report_runs_every_program_that_has_a_quick_version() -> None:
    sources = {path.stem: path.read_text() for path in Path(report.__file__).parent.glob("*.py")}
    documented = {name for name, text in sources.items() if f"python benchmarks/{name}.py [--quick]" in text}
    assert set(report.scripts()) == documented - {"report"}
    assert len(report.scripts()) >= 10


def test_the_program_for_a_gpu_gives_lines_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "MEMORY_LENGTHS", (512,))
    for section in ("kernels", "parity", "memory"):
        lines = list(gpu.lines_of(section))
        assert len(lines) >= 2
        assert {line.section for line in lines} == {section}


def test_the_script_for_a_gpu_runs_every_part_and_prints_the_table_last(tmp_path: Path) -> None:
    """Its Python notes its arguments, and fails in two parts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "benchmarks").symlink_to(SCRIPT.parent)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "benchmarks/gpu.sh", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls == [*(f"benchmarks/gpu.py {part}" for part in gpu.SECTIONS), "benchmarks/gpu.py table out/gpu.jsonl"]
    assert done.stdout.splitlines()[-1] == "the table of 4 lines"


def last_object(capsys: pytest.CaptureFixture) -> dict:
    """Returns the object in the last line that was printed; the lines before are for people."""
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines and not any(line.startswith("{") for line in lines)
    return json.loads(last)
