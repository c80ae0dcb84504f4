"""Runs in this process: resuming, evaluating and saving, and what a run folder holds afterwards."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import pytest
import torch

from longmlm.artifacts import artifact
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.run import RunSummary
from longmlm.data.rows import open_rows
from longmlm.errors import CheckpointError, FolderError, TrainingError
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.processes import exclusive_lock
from longmlm.reports.model_card import training_of
from longmlm.runtime.memory import KEPT_BYTES
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import Start
from longmlm.training import loop
from longmlm.training.run_folder import (
    best_checkpoint,
    check_still_newest,
    checkpoint_folder,
    newest_verified,
    prune,
    read_state,
)
from tests.support.tiny import tiny_extension
from tests.support.training import (
    assert_same_model,
    evaluation_lines,
    losses,
    state_at,
    train_until,
    training_lines,
    weights_at,
    with_recipe,
    with_runtime,
)


def test_a_killed_run_resumed_equals_an_uninterrupted_one_bit_for_bit(uninterrupted, half_trained, train, capsys):
    newest = checkpoint_folder(Path(half_trained.run), 4)
    assert newest_verified(Path(half_trained.run)).folder == newest
    capsys.readouterr()
    resumed = train(half_trained)
    assert capsys.readouterr().out.count(f"resuming after step 4, from {newest}\n") == 1
    assert half_trained.recipe.dropout is None
    assert_same_model(uninterrupted, resumed, 12)
    assert losses(uninterrupted) == losses(resumed)
    assert len(losses(resumed)) == 12
    num_rows = len(open_rows(Path(half_trained.rows), "train"))
    assert state_at(resumed, 8).cursor % num_rows > 0  # in the middle of an epoch
    before = {path: path.stat().st_mtime_ns for path in resumed.rglob("*") if "step-" in str(path)}
    train(half_trained)
    assert before and before == {path: path.stat().st_mtime_ns for path in before}


def test_a_run_resumed_with_another_number_of_threads_says_so(half_trained, train, capsys):
    newest = checkpoint_folder(Path(half_trained.run), 4)
    assert read_state(newest).num_threads == 1
    before = torch.get_num_threads()
    capsys.readouterr()
    try:
        resumed = train(with_runtime(half_trained, num_threads=2))
    finally:
        torch.set_num_threads(before)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "thread" in line]
    assert line.startswith(f"{newest} was saved with 1 thread per process, and now there are 2: ")
    assert state_at(resumed, 12).step == 12
    assert read_state(checkpoint_folder(resumed, 12)).num_threads == 2


def test_a_finished_run_that_is_run_again_keeps_its_summary_and_stays_finished(settings, train, finished, monkeypatch):
    run = finished
    before = (run / RunSummary.FILE).read_text()
    monkeypatch.setattr(loop, "peak_memory_bytes", lambda: 1)
    train(settings)
    assert (run / RunSummary.FILE).read_text() == before
    (run / RunSummary.FILE).write_text(before[:-9])  # damaged
    train(settings)
    assert artifact.read(RunSummary, run / RunSummary.FILE).state == state_at(run, 12)


def test_the_bar_moves_with_every_step_however_seldom_a_line_is_logged(settings, train, monkeypatch):
    shown = []
    monkeypatch.setattr(loop.Progress, "move_to", lambda _, done, _text="": shown.append(done))
    train(with_runtime(settings, log_every_steps=6))
    assert sorted({*shown}) == [*range(1, 13)]


def test_freed_memory_is_returned_with_every_step_and_evaluation(settings, train, monkeypatch):
    """Or the process would hold more and more, and plan would not say how much."""
    returned, measured = Mock(), []

    def measure(evaluation, between_rows):
        measured.append(returned.call_count)
        return evaluate(evaluation, between_rows)

    evaluate = RunEvaluation.measure
    monkeypatch.setattr(RunEvaluation, "measure", measure)
    monkeypatch.setattr(loop, "return_freed_memory", returned)
    train(with_runtime(settings, log_every_steps=3))
    assert measured == [0, 5, 10, 15]
    assert returned.call_args_list[:6] == [call(), *[call(KEPT_BYTES)] * 4, call()]
    assert returned.call_count == 12 + len(measured)


def test_a_resume_needs_neither_the_start_nor_the_same_runtime(uninterrupted, half_trained, train):
    moved = replace(half_trained, start=Start(checkpoint="./moved"))
    resumed = train(with_runtime(moved, save_every_steps=3, num_loader_workers=1))
    assert_same_model(uninterrupted, resumed, 12)


def test_dropout_is_on_unless_the_recipe_sets_it_to_zero(settings, uninterrupted, train):
    assert losses(uninterrupted) != losses(train(with_recipe(settings, dropout=0.0)))


def test_micro_batches_make_the_same_training_as_one_big_batch(settings, train, tmp_path):
    settings = with_recipe(settings, dropout=0.0)
    runs = [
        train(replace(with_runtime(settings, rows_per_micro_batch=rows), run=str(tmp_path / str(rows))))
        for rows in (1, 3, 64)
    ]
    for run in runs[1:]:
        assert losses(run) == pytest.approx(losses(runs[0]), rel=1e-5)
    left, right = (weights_at(run, 12) for run in runs[::2])
    assert max(float((left[key] - right[key]).abs().max()) for key in left) < 1e-4
    assert losses(runs[0])[-1] < losses(runs[0])[0]


def test_a_run_that_died_before_its_first_checkpoint_starts_over_with_clean_metrics(settings, train):
    train_until(settings, 3)
    assert len(MetricsFile(Path(settings.run)).lines()) == 1 + 3
    run = train(settings)
    assert [line.step for line in evaluation_lines(run)] == [0, 4, 8, 12]
    assert [line.step for line in training_lines(run)] == list(range(1, 13))


def test_the_number_of_steps_may_change_while_the_rate_is_constant(settings, train, tmp_path):
    settings = with_recipe(settings, schedule="constant-then-decay", decay_steps=4)
    longer = with_recipe(settings, num_steps=16)
    uninterrupted = train(replace(longer, run=str(tmp_path / "uninterrupted")))
    run = train(settings)
    with pytest.raises(CheckpointError, match="num_steps"):
        train(longer)
    shutil.rmtree(checkpoint_folder(run, 12))
    train(longer)
    assert_same_model(uninterrupted, run, 16)


def test_old_checkpoints_are_removed_and_the_best_is_kept(settings, train, monkeypatch):
    accuracies = iter([10.0, 90.0, 20.0, 90.0, 40.0, 50.0, 60.0])  # of two equal ones, the first is the best
    real = RunEvaluation.measure

    def scripted(*arguments):
        measured, *more = real(*arguments)
        return replace(measured, whole=replace(measured.whole, accuracy=next(accuracies))), *more

    monkeypatch.setattr(RunEvaluation, "measure", scripted)
    run = train(with_runtime(settings, evaluate_every_steps=2, save_every_steps=2))
    assert sorted(folder.name[-2:] for folder in (run / "checkpoints").iterdir()) == ["02", "10", "12"]
    assert best_checkpoint(run) == checkpoint_folder(run, 2)
    assert read_state(newest_verified(run).folder).state.best_at_step == 2


def test_pruning_never_removes_the_checkpoint_just_saved_for_damaged_ones_after_it(finished):
    run = finished
    assert [checkpoint_folder(run, step).exists() for step in (4, 8, 12)] == [False, True, True]
    (checkpoint_folder(run, 12) / "optimizer.pt").write_bytes(b"damaged")
    for step in (15, 20):
        checkpoint_folder(run, step).mkdir()
    saved = checkpoint_folder(run, 8)
    assert saved not in prune(run, saved, 2)
    assert newest_verified(run).folder == saved


def test_a_second_launch_on_one_run_folder_is_refused(settings, train):
    with exclusive_lock(Path(settings.run)), pytest.raises(FolderError, match="another process"):
        train(settings)
    assert MetricsFile(Path(settings.run)).lines() == []
    assert train(settings).is_dir()


def test_a_batch_of_half_a_row_becomes_a_row_and_a_line_says_so(settings, train, capsys):
    train(with_recipe(settings, batch_tokens=17, num_steps=2))
    assert "batch_tokens = 17, but a global batch of 1 whole row has" in capsys.readouterr().out
    train(replace(settings, run=f"{settings.run}-256"))
    assert "batch_tokens" not in capsys.readouterr().out


def test_a_run_masks_words_and_says_so_in_its_settings(settings, train):
    run = train(with_recipe(settings, masking=Masking(unit="word"), num_steps=2))
    assert read_state(newest_verified(run).folder).recipe.masking.unit == "word"
    assert training_of(newest_verified(run).folder).settings["masking.unit"] == "word"


def test_a_checkpoint_that_another_process_has_written_meanwhile_is_not_ignored(finished):
    run = finished
    newest, older = checkpoint_folder(run, 12), checkpoint_folder(run, 8)
    check_still_newest(run, newest)
    check_still_newest(run.parent / "new", None)
    for stale in (None, older, checkpoint_folder(run, 2)):
        with pytest.raises(CheckpointError, match="another process"):
            check_still_newest(run, stale)
    (newest / "optimizer.pt").write_bytes(b"damaged")
    check_still_newest(run, older)


def test_a_local_base_model_that_is_absent_is_not_measured_and_one_line_says_so(
    settings, train, uninterrupted, tmp_path, capsys
):
    start = Path(shutil.copytree(checkpoint_folder(uninterrupted, 12), tmp_path / "released"))
    extension = tiny_extension("mybase", 32)
    artifact.write(start / "longmlm.json", replace(read_provenance(start), extension=extension))
    (start / "manifest.json").unlink()
    settings = replace(settings, run=str(tmp_path / "next"), start=Start(checkpoint=str(start)))
    run = train(settings)
    assert "mybase is not on this machine" in capsys.readouterr().out
    assert state_at(run, 12).base_chunks is None and state_at(run, 12).base_cut is None
    runtime = replace(settings.runtime, stop_when_recovered=True)
    with pytest.raises(TrainingError, match="stop_when_recovered needs the accuracy of the base model mybase"):
        train(replace(settings, run=str(tmp_path / "stops"), runtime=runtime))


def test_a_run_stops_at_the_evaluation_that_confirms_that_it_has_recovered(settings, train, uninterrupted, tmp_path):
    base = checkpoint_folder(uninterrupted, 12)  # read in chunks of 16 tokens, it is about as accurate as in whole rows
    start = Path(shutil.copytree(base, tmp_path / "long"))
    artifact.write(start / "longmlm.json", replace(read_provenance(start), extension=tiny_extension(base, 32)))
    (start / "manifest.json").unlink()
    runtime = replace(settings.runtime, stop_when_recovered=True)
    run = train(replace(settings, start=Start(checkpoint=str(start)), runtime=runtime))
    first, second = evaluation_lines(run)
    assert (first.step, first.recovered_at_step, second.step) == (0, None, 4)
    assert (second.recovered_at_step, second.recovered_at_tokens) == (0, 0)
    assert state_at(run, 4).recovered_at_step == 0
    assert second.base_chunks == first.base_chunks != first.base_cut == second.base_cut
    assert first.recovery.points == pytest.approx(first.held_out.whole.accuracy - first.base_chunks)


def test_the_metrics_hold_accuracy_by_block_and_nothing_finer(uninterrupted):
    evaluations = [line.held_out for line in evaluation_lines(uninterrupted)]
    assert len(evaluations) == 4
    for held_out in evaluations:
        assert not held_out.positions
        assert sum(block.num_selected for block in held_out.blocks) == held_out.whole.num_selected > 0


def test_a_run_may_start_from_the_best_weights_of_another_and_has_steps_of_its_own(
    settings, train, uninterrupted, tmp_path
):
    first = uninterrupted
    other = train(replace(settings, run=str(tmp_path / "other"), start=Start(checkpoint=str(first))))
    chosen = best_checkpoint(first)
    assert read_provenance(checkpoint_folder(other, 12)).started_from.name == str(chosen)
    assert [line.step for line in training_lines(other)] == list(range(1, 13))
    same = train(replace(settings, run=str(tmp_path / "same"), start=Start(checkpoint=str(chosen))))
    assert losses(other) == losses(same) != losses(first)
