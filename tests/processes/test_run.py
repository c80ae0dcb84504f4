"""The run command as a user starts it: stages are skipped, resumed, refused, and stopped by a signal."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.inputs import QUICKLY_READ_BYTES
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import finish, has_steps, longmlm, start_command, wait_until
from tests.support.tiny import tiny_project
from tests.support.training import training_lines

PIPELINE = """
model = "base"
corpus = ["text.jsonl"]
length = 40
output = "out"
[prepare.recipe]
held_out_fraction = 0.25
[pretrain.recipe]
num_steps = 6
batch_tokens = 320
precision = "no"
held_out.max_rows = 16
[pretrain.runtime]
num_threads = 1
log_every_steps = 1
[evaluate.recipe]
precision = "no"
held_out.max_rows = 16
[release.recipe]
allow_unrecovered = true
[release.card]
license = "mit"
"""
ENDLESS = ("--pretrain.recipe.num-steps", "100000", "--pretrain.runtime.save-every-steps", "100000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_project(tmp_path, PIPELINE)


def labels(lines: list[str]) -> list[str]:
    """Returns which stages were started and which were already done."""
    words = (line.split() for line in lines if line.startswith("[") and ("started" in line or "already done" in line))
    return [f"{word[1]} {word[2].rstrip(',')}" for word in words]


def test_a_pipeline_runs_from_text_to_release_and_again_does_nothing(folder: Path) -> None:
    assert longmlm(folder, "extend", "mine.toml")[0] == 0
    code, lines = longmlm(folder, "run", "mine.toml")
    assert code == 0, lines[-20:]
    assert labels(lines) == [
        "extend: already",
        *(f"{x}: started" for x in ("prepare", "pretrain", "evaluate", "release")),
    ]
    assert lines[-3:-1] == ["page: out/evaluation/index.html", "released: out/release"]
    assert lines[-4].startswith(("Recovered", "Not recovered")) and lines[-1].startswith("next: ")
    assert sum(line.startswith("whole row") for line in lines) == 1
    assert any("pretrain: about 0:00:" in line and "tokens/s" in line for line in lines)
    assert len(training_lines(folder / "out" / "run")) == 6
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.json*")}
    code, lines = longmlm(folder, "run", "mine.toml", "--pretrain.runtime.num-threads", "2")
    assert code == 0
    assert labels(lines) == [f"{name}: already" for name in ("extend", "prepare", "pretrain", "evaluate", "release")]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    file = folder / "out" / "evaluation" / Evaluation.FILE
    evaluation = read_evaluation(file)
    artifact.write(file, replace(evaluation, sources=replace(evaluation.sources, after_sha256="0" * 64)).signed())
    code, lines = longmlm(folder, "run", "mine.toml", "--release.recipe.weights=bf16", "--release.card.title=Mine")
    assert (code, labels(lines)[3:]) == (0, ["evaluate: started", "release: started"])
    assert read_evaluation(file) == evaluation
    assert "# Mine" in (folder / "out" / "release" / "README.md").read_text(encoding="utf-8")
    assert_changes_are_refused(folder)
    with (folder / "text.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"text": "One more document."}\n')
    code, [line] = longmlm(folder, "run", "mine.toml")
    assert (code, line.startswith("error: prepare: out/rows was made from other text")) == (2, True), line


def assert_changes_are_refused(folder: Path) -> None:
    for option, stage, key in (
        ("--length=36", "extend: out/long", "recipe.num_positions was 40, is 36"),
        ("--extend.recipe.smooth-terms=5", "extend: out/long", "recipe.smooth_terms was 4, is 5"),
        ("--pretrain.recipe.seed=7", "pretrain: out/run", "recipe.seed was 42, is 7"),
    ):
        code, [line] = longmlm(folder, "run", "mine.toml", option)
        assert (code, line.startswith(f"error: {stage} was made with other settings: {key}")) == (2, True), line
    (folder / "out" / "long").rename(folder / "aside")
    code, [line] = longmlm(folder, "run", "mine.toml")
    assert code == 2 and "extend has to run again, but out/release was made from its earlier result" in line
    (folder / "aside").rename(folder / "out" / "long")


@pytest.mark.parametrize(
    ("number", "launch"),
    [(signal.SIGINT, ()), pytest.param(signal.SIGTERM, ("--launch", "single"), marks=pytest.mark.slow)],
)
def test_a_signal_is_passed_on_and_the_same_command_resumes(folder: Path, number: signal.Signals, launch) -> None:
    run = folder / "out" / "run"
    process = start_command(folder, "run", "mine.toml", *ENDLESS, *launch)
    wait_until(lambda: has_steps(run, 3), process, folder)
    second = subprocess.run(
        [sys.executable, "-m", "longmlm", "run", "mine.toml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "out is being written by another process" in second.stderr
    process.send_signal(number)
    code, output = finish(process, folder, 60)
    last = training_lines(run)[-1].step
    assert code == 128 + number, output[-2000:]
    assert f"[3/5] pretrain: stopped by {number.name}: the same command resumes from there" in output.splitlines()
    assert newest_verified(run).folder == checkpoint_folder(run, last)
    process = start_command(folder, "run", "mine.toml", *ENDLESS, *launch)
    wait_until(lambda: has_steps(run, last + 1), process, folder)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert children and not psutil.wait_procs(children, 60)[1]
    steps = [line.step for line in training_lines(run)]
    assert steps == list(range(1, len(steps) + 1))
    assert newest_verified(run).folder == checkpoint_folder(run, len(steps))


def test_a_failing_stage_is_named_and_keeps_its_exit_code(folder: Path) -> None:
    (folder / "text.jsonl").write_text("{}\n" + " " * QUICKLY_READ_BYTES)  # too large to be read before the stages
    code, lines = longmlm(folder, "run", "mine.toml")
    assert code == 2
    assert labels(lines) == ["extend: started", "prepare: started"]
    assert lines[-2].startswith("error: ")
    assert lines[-1] == "[2/5] prepare: failed (exit code 2): fix that, then the same command resumes from this stage"
