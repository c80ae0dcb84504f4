"""The demo as a user runs it: from a clean folder to a released model that recovered."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longmlm.artifacts.evaluation import Evaluation, read_evaluation

OUTPUT = Path("out/demo")  # of the pipeline


@pytest.mark.slow
def test_the_demo_recovers_and_releases_a_model_that_reads_three_times_as_much(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "longmlm", "run", "demo"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    evaluation = read_evaluation(tmp_path / OUTPUT / "evaluation" / Evaluation.FILE)
    accuracy = {view: measured.whole.accuracy for view, measured in evaluation.measured.items()}
    after = evaluation.measured["long_after"]
    assert accuracy["long_after"] >= accuracy["base_cut"] - 2 * after.whole.standard_error
    assert accuracy["long_after"] > accuracy["long_before"] + 2
    assert accuracy["long_before"] > accuracy["base_cut"] - 5
    assert after.whole.num_selected >= 20_000
    blocks = [[block.accuracy for block in evaluation.measured[view].blocks] for view in ("long_before", "long_after")]
    assert len(blocks[0]) == len(blocks[1]) == 3
    assert min(blocks[1][1:]) > max(blocks[0][1:])
    *_, found, page, released, step = done.stdout.splitlines()
    assert found.startswith(("Recovered", "Not recovered")) and step.startswith("next: ")
    assert done.stdout.count("whole row ") == 1
    assert (page, released) == (f"page: {OUTPUT}/evaluation/index.html", f"released: {OUTPUT}/release")
    assert all(name in done.stdout for name in ("base_cut", "base_chunks", "long_before", "long_after"))
    tokenizer = json.loads((tmp_path / OUTPUT / "release" / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 384
    shutil.rmtree(tmp_path / OUTPUT)
