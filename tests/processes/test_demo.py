"""The demo as a user runs it: from a clean folder to a released model that recovered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_starts_over_recovers_and_releases_a_model_that_reads_three_times_as_much():
    leftover = ROOT / "out" / "demo" / "rows" / "leftover"
    leftover.parent.mkdir(parents=True, exist_ok=True)
    leftover.touch()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "pipelines/demo.sh"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert not leftover.exists()
    summary = json.loads((ROOT / "out" / "demo" / "summary.json").read_text())
    assert summary["long_after"] >= summary["base_cut"] - 2 * summary["standard_error"]
    assert summary["long_after"] > summary["long_before"] + 2
    assert summary["num_selected"] >= 20_000
    assert len(summary["blocks_before"]) == len(summary["blocks_after"]) == 3
    assert min(summary["blocks_after"][1:]) > max(summary["blocks_before"][1:])
    assert all(name in done.stdout for name in ("base_cut", "base_windows", "long_before", "long_after", "index.html"))
    exported = ROOT / summary["exported_to"]
    assert json.loads((exported / "tokenizer_config.json").read_text())["model_max_length"] == 384
