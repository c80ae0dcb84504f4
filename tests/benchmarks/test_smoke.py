"""Benchmarks run: each ends with a line of JSON, and the report knows all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu
import micro_batch_memory
import pytest
import report

BENCHMARKS = Path(report.__file__).parent
PYTHON = '#!/bin/sh\necho "$*" >> calls.txt\ncase "$*" in *parity) exit 3 ;; *) echo "{}" ;; esac\n'


def test_the_last_line_of_a_benchmark_is_a_json_object(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["micro_batch_memory.py", "--quick"])
    monkeypatch.setattr(micro_batch_memory, "measured_bytes", micro_batch_memory.predicted_bytes)
    micro_batch_memory.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    entries = [found, *found["others"]]
    assert len(entries) == 3 + len(micro_batch_memory.MODES)
    assert all(entry["ratio"] == pytest.approx(entry["ours"] / entry["peer"]) for entry in entries)
    assert len(report.table([found]).splitlines()) == 1 + len(entries)


def test_the_report_runs_every_program_that_has_a_quick_version() -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("*.py")}
    documented = {name for name, text in sources.items() if f"python benchmarks/{name}.py [--quick]" in text}
    assert set(report.scripts()) == documented - {"report"}
    assert len(report.scripts()) >= 10


@pytest.mark.parametrize("section", ["kernels", "parity", "memory"])
def test_a_part_of_the_gpu_benchmark_gives_lines_without_a_gpu(section: str, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "MEMORY_LENGTHS", (512,))
    lines = list(gpu.lines_of(section))
    assert len(lines) >= 2
    assert {line.section for line in lines} == {section}


def test_the_gpu_script_runs_every_part_once_and_the_table_last_though_one_fails(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "benchmarks").symlink_to(BENCHMARKS)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "benchmarks/gpu.sh", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls.txt").read_text(encoding="utf-8").splitlines()
    assert calls == [*(f"benchmarks/gpu.py {part}" for part in gpu.SECTIONS), "benchmarks/gpu.py table out/gpu.jsonl"]
