"""Two processes train as one, and a fault in one of them loses nothing and is named in a line."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.training import loop
from longmlm.training.run_folder import VerifiedCheckpoint, checkpoint_folder, newest_verified
from tests.support.faulty import SENT, happen
from tests.support.launching import TWO_PROCESSES, errors_in, faulty, run_to_end
from tests.support.training import (
    assert_same_metrics,
    assert_same_model,
    losses,
    state_at,
    weights_at,
    with_recipe,
    with_runtime,
)


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys() and len(one) > 20
    return max(float((one[key] - other[key]).abs().max()) for key in one)


def test_a_run_that_moves_to_two_processes_and_back_trains_on_the_same_batches(pair, settings, train, tmp_path):
    """One process, then two of which one is terminated in an evaluation, then one, against a run that never moved."""
    settings, run = with_recipe(settings, dropout=0.0), pair["moved"].succeeded()
    assert "resuming after step 2" in pair["moved"].output
    assert newest_verified(run).folder == checkpoint_folder(run, 4)
    run, undisturbed = Path(shutil.copytree(run, tmp_path / "back")), train(settings)
    train(with_runtime(replace(settings, run=str(run)), save_every_steps=2))
    assert_same_metrics(undisturbed, run)
    assert farthest(weights_at(undisturbed, 12), weights_at(run, 12)) < 1e-5
    assert farthest(weights_at(run, 12), weights_at(undisturbed, 8)) > 1e-3


@pytest.mark.slow
def test_a_run_moves_to_two_and_to_four_processes_and_back(settings, train, tmp_path):
    settings = with_recipe(settings, dropout=0.0)
    undisturbed, run = train(replace(settings, run=str(tmp_path / "undisturbed"))), Path(settings.run)
    settings = with_runtime(settings, save_every_steps=2)
    for num_processes, last in ((2, 4), (4, 7)):
        launcher = (*TWO_PROCESSES, "--num_processes", str(num_processes))
        moved = with_runtime(settings, num_processes=num_processes, rows_per_micro_batch=2)
        code, output = run_to_end(moved, tmp_path, launcher, *faulty("terminate", num_processes - 1, last - 1))
        assert code == 0, output[-2000:]
        assert newest_verified(run).folder == checkpoint_folder(run, last)
    train(settings)
    assert_same_metrics(undisturbed, run)
    assert farthest(weights_at(undisturbed, 12), weights_at(run, 12)) < 1e-5


@pytest.mark.parametrize("fault", ["nan", "nan-gradient"])
def test_a_number_that_is_not_finite_in_one_process_stops_all_before_the_update(pair, fault):
    run = pair[fault].run
    assert pair[fault].codes == [2, 2]
    assert "not finite in step 7" in errors_in(pair[fault].output)[0]
    assert len(losses(run)) == 6
    assert newest_verified(run).folder == checkpoint_folder(run, 4)
    noted = [json.loads(path.read_text()) for path in sorted(run.glob("non-finite-*.json"))]
    assert [note["step"] for note in noted] == [7, 7]
    assert all(note["row_ids"] for note in noted)
    assert not set(noted[0]["row_ids"]) & set(noted[1]["row_ids"])


def test_a_full_disk_stops_two_processes_with_a_line_and_the_run_resumes_when_there_is_space(pair):
    run, kept = pair["full"].run, "step-00000004 is kept: a file would be larger than allowed"
    assert pair["full"].codes == [2, 2]
    [error] = errors_in(pair["full"].output)
    assert kept in error and "Traceback" not in pair["full"].output
    assert f"resuming after step 4, from {checkpoint_folder(run, 4)}" in pair["full-resumed"].output
    assert newest_verified(pair["full-resumed"].succeeded()) == VerifiedCheckpoint(checkpoint_folder(run, 12), ())
    assert not list(run.glob("checkpoints/*.partial"))
    assert_same_model(pair["undisturbed"].run, run, 12)
    assert losses(pair["undisturbed"].run) == losses(run)


def test_an_update_in_fp16_is_skipped_by_both_when_a_gradient_of_one_is_not_finite(pair, settings, monkeypatch, train):
    """Were it skipped on one rank only, the weights of the ranks would differ, and the losses from one process's."""
    update, run = loop.one_update, pair["fp16"].succeeded()

    def spoiled(task, run, batches, state):
        if state.step == 5:
            happen("nan-gradient", run)
        return update(task, run, batches, state)

    monkeypatch.setattr(loop, "one_update", spoiled)
    alone = train(with_recipe(settings, precision="fp16", dropout=0.0))
    states = [state_at(one, 12) for one in (alone, run)]
    assert [(state.skipped_steps, state.cursor) for state in states] == [(1, states[0].cursor)] * 2
    assert losses(run) == pytest.approx(losses(alone), abs=2e-3)
    assert len(losses(alone)) == 12
    output = pair["fp16"].output
    dated = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d step (\d+)/12 mlm loss .* tokens/s", output, re.MULTILINE)
    assert dated == [str(step) for step in range(1, 13)]
    assert not re.search(r"\r|%\||it/s", output)


def test_every_rank_takes_the_rows_that_fit_on_the_fullest_and_halves_them_when_one_runs_out_of_memory(pair):
    of_two_rows, halved = pair["memory"].succeeded(), pair["rows"].succeeded()
    assert re.findall(r"micro-batches of (\d+) rows", pair["memory"].output) == ["2"]
    assert re.findall(r"out of memory in step 1: .*", pair["rows"].output) == [
        "out of memory in step 1: micro-batches of 2 rows from now on, not 5"
    ]
    assert losses(halved) == losses(of_two_rows) and len(losses(halved)) == 12
    assert_same_model(halved, of_two_rows, 12)
    assert state_at(halved, 12).micro_batch.num_rows == 2


def test_generated_positions_have_the_losses_of_one_process(pair, generated):
    one, two = Path(generated.run), pair["generated"].succeeded()
    assert len(losses(one)) == 12
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    left, right = weights_at(one, 12), weights_at(two, 12)
    for key in (key for key in left if not key.endswith("key.bias")):  # no gradient: AdamW amplifies its rounding
        torch.testing.assert_close(right[key], left[key], rtol=0, atol=2e-6)


def test_gradients_are_sent_only_in_the_last_micro_batch_and_before_the_last_is_computed(pair):
    num_steps = len(losses(pair["communicating"].succeeded()))
    for rank in (0, 1):
        micro_batches = json.loads((pair["communicating"].folder / f"events-{rank}.json").read_text(encoding="utf-8"))
        assert all(is_last == (SENT in events) for is_last, events in micro_batches)
        sending = [events for is_last, events in micro_batches if is_last]
        assert len(sending) == num_steps == 3 and len(micro_batches) >= 2 * num_steps
        # In the first step DDP learns the order of the gradients, and sends them all at once.
        for events in sending[1:]:
            gradients = [event for event in events if event != SENT]
            assert len(gradients) == len(set(gradients)) > 60
            assert events.count(SENT) > 1
            assert events.index(SENT) < events.index(gradients[-1]) - 10


def test_a_dry_run_names_the_processes_and_threads_that_the_launcher_sets_by_itself_reach_no_rank(pair):
    assert "processes   2 on " in pair["dry"].output and pair["dry"].codes == [0, 0]
    assert not pair["dry"].run.exists()
    assert pair["dry"].num_threads == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
