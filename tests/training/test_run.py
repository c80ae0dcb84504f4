import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.batches.sampling import global_batch
from longmlm.batches.steps import rows_per_step
from longmlm.data.rows import open_rows
from longmlm.errors import CheckpointError, DataError, TrainingError
from longmlm.settings.pretrain import Start
from longmlm.training import checkpoint, loop, tracking
from longmlm.training.checkpoint import folder_of
from tests.support.tiny import tiny_extension


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in tracking.read(run) if "loss" in line]


def assert_same_model(one: Path, other: Path, step: int) -> None:
    left, right = (load_file(folder_of(run, step) / "model.safetensors") for run in (one, other))
    assert left.keys() == right.keys() and len(left) > 20
    assert all(torch.equal(left[key], right[key]) for key in left)
    left, right = (torch.load(folder_of(run, step) / "optimizer.pt", weights_only=True) for run in (one, other))
    assert all(torch.equal(left["state"][key]["exp_avg"], right["state"][key]["exp_avg"]) for key in left["state"])


def stop_after(monkeypatch, step: int, error: type[BaseException] = SystemExit) -> None:
    """Makes the run die at the beginning of the update after `step`."""
    update = loop.one_update

    def dying(run, batches, state):
        if state.step == step:
            raise error
        return update(run, batches, state)

    monkeypatch.setattr(loop, "one_update", dying)


def test_a_killed_run_resumed_equals_an_uninterrupted_one_bit_for_bit(settings, train, tmp_path, monkeypatch):
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(settings)
    assert checkpoint.newest_verified(Path(settings.run)).folder == folder_of(Path(settings.run), 4)
    resumed = train(settings)

    assert settings.recipe.dropout is None
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)
    assert len(losses(whole)) == 12


def test_resumed_in_the_middle_of_an_epoch(settings, train):
    run = train(settings)
    state, _ = checkpoint.read_state(folder_of(run, 8))
    num_rows = json.loads((Path(settings.rows) / "manifest.json").read_text())["report"]["train"]["rows"]
    assert state.cursor % num_rows > 0


def test_dropout_is_on_and_differs_from_run_to_run_by_seed(settings, train, tmp_path):
    one = train(settings)
    recipe = replace(settings.recipe, dropout=0.0)
    other = train(replace(settings, run=str(tmp_path / "other"), recipe=recipe))
    assert losses(one) != losses(other)


def test_a_flipped_byte_makes_a_checkpoint_skipped_and_named(settings, train, tmp_path, capsys):
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    run = train(settings)
    damaged = folder_of(run, 12) / "optimizer.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    sound = checkpoint.newest_verified(run)
    assert sound.folder == folder_of(run, 8)
    assert "step-00000012" in sound.skipped[0] and "optimizer.pt" in sound.skipped[0]
    capsys.readouterr()
    train(settings)
    assert "step-00000012 is skipped" in capsys.readouterr().out
    assert_same_model(whole, run, 12)


def test_a_half_written_checkpoint_is_ignored(settings, train):
    run = train(settings)
    half = run / "checkpoints" / "step-00000016.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    unsealed = run / "checkpoints" / "step-00000016"
    unsealed.mkdir()
    sound = checkpoint.newest_verified(run)
    assert sound.folder == folder_of(run, 12)
    assert len(sound.skipped) == 1 and "step-00000016" in sound.skipped[0]


def test_micro_batches_make_the_same_training_as_one_big_batch(settings, train, tmp_path):
    settings = replace(settings, recipe=replace(settings.recipe, dropout=0.0))
    runs = [
        train(
            replace(
                settings, run=str(tmp_path / str(rows)), runtime=replace(settings.runtime, rows_per_micro_batch=rows)
            )
        )
        for rows in (1, 3, 64)
    ]
    for run in runs[1:]:
        assert losses(run) == pytest.approx(losses(runs[0]), rel=1e-5)
    left, right = (load_file(folder_of(run, 12) / "model.safetensors") for run in runs[::2])
    assert max(float((left[key] - right[key]).abs().max()) for key in left) < 1e-4
    assert losses(runs[0])[-1] < losses(runs[0])[0]


def test_sigterm_saves_and_the_same_command_goes_on_to_the_same_end(settings, train, tmp_path, monkeypatch, capsys):
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    update = loop.one_update

    def interrupted(run, batches, state):
        if state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(run, batches, state)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "one_update", interrupted)
        run = train(settings)
    assert "stopped by SIGTERM after step 6" in capsys.readouterr().out
    assert checkpoint.newest_verified(run).folder == folder_of(run, 6)
    train(settings)
    assert_same_model(whole, run, 12)
    assert losses(run) == losses(whole)


def test_loss_that_is_not_finite_stops_before_the_update_and_names_the_rows(settings, train, monkeypatch):
    update = loop.one_update

    def spoiled(run, batches, state):
        if state.step == 9:
            with torch.no_grad():
                run.inner.model.lm_head.bias[7] = math.nan
        return update(run, batches, state)

    monkeypatch.setattr(loop, "one_update", spoiled)
    with pytest.raises(TrainingError, match="not finite in step 10"):
        train(settings)
    assert checkpoint.newest_verified(Path(settings.run)).folder == folder_of(Path(settings.run), 8)
    named = json.loads((Path(settings.run) / "non-finite-step-00000010-process-0.json").read_text())
    rows = open_rows(Path(settings.rows), "train")
    num_rows = rows_per_step(settings.recipe.batch_tokens, rows, num_processes=1)
    expected = global_batch(9 * num_rows, num_rows, len(rows), settings.recipe.seed).row_ids.tolist()
    assert (named["step"], named["row_ids"]) == (10, expected)
    state = load_file(folder_of(Path(settings.run), 8) / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert not folder_of(Path(settings.run), 12).exists()


def test_a_run_that_died_before_its_first_checkpoint_starts_over_with_a_clean_record(settings, train, monkeypatch):
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        with pytest.raises(SystemExit):
            train(settings)
    assert len(tracking.read(Path(settings.run))) == 1 + 3
    run = train(settings)
    lines = tracking.read(run)
    assert [line["step"] for line in lines if "held_out" in line] == [0, 4, 8, 12]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


def test_another_recipe_on_resume_is_refused_with_what_differs(settings, train):
    train(settings)
    with pytest.raises(CheckpointError, match=r"recipe.learning_rate was 0.001, is 0.1"):
        train(replace(settings, recipe=replace(settings.recipe, learning_rate=0.1)))


def test_the_number_of_steps_may_change_while_the_rate_is_constant(settings, train, tmp_path):
    recipe = replace(settings.recipe, schedule="constant-then-decay", decay_steps=4)
    whole = train(replace(settings, run=str(tmp_path / "whole"), recipe=replace(recipe, num_steps=16)))
    run = train(replace(settings, recipe=recipe))
    with pytest.raises(CheckpointError, match="num_steps"):
        train(replace(settings, recipe=replace(recipe, num_steps=16)))
    shutil.rmtree(folder_of(run, 12))
    train(replace(settings, recipe=replace(recipe, num_steps=16)))
    assert_same_model(whole, run, 16)


def test_runtime_settings_may_change_on_resume(settings, train, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(settings)
    run = train(replace(settings, runtime=replace(settings.runtime, save_every_steps=3, num_loader_workers=1)))
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    assert_same_model(whole, run, 12)


def test_a_finished_run_started_again_changes_nothing(settings, train):
    run = train(settings)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if "step-" in str(path)}
    train(settings)
    assert before
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if "step-" in str(path)}


def test_old_checkpoints_go_and_the_best_stays(settings, train, monkeypatch):
    order = iter([10.0, 90.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    real = loop.measure

    def scripted(*arguments):
        measured = real(*arguments)
        return replace(measured, whole=replace(measured.whole, accuracy=next(order)))

    monkeypatch.setattr(loop, "measure", scripted)
    config = replace(settings, runtime=replace(settings.runtime, evaluate_every_steps=2, save_every_steps=2))
    run = train(config)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-00000002",
        "step-00000010",
        "step-00000012",
    ]
    assert checkpoint.best(run) == folder_of(run, 2)


def test_rows_of_another_tokenizer_are_refused(settings, train, ground, tmp_path):
    folder = tmp_path / "tokenizer"
    shutil.copytree(ground / "tokenizer", folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="another tokenizer"):
        train(replace(settings, start=replace(settings.start, tokenizer=str(folder))))


def test_rows_from_a_hub_are_remembered_by_their_commit(settings, train, ground, tmp_path):
    rows = Path(shutil.copytree(ground / "rows", tmp_path / "rows"))
    manifest = json.loads((rows / "manifest.json").read_text())
    manifest["plan"]["sources"] = [{"dataset": "owner/name", "split": "train", "commit": "c0ffee"}]
    (rows / "manifest.json").write_text(json.dumps(manifest))
    run = train(replace(settings, rows=str(rows), recipe=replace(settings.recipe, num_steps=4)))
    trained = read_provenance(folder_of(run, 4)).trained
    assert (trained.dataset_commits, trained.files_sha256) == (("c0ffee",), ())


def test_a_checkpoint_that_another_process_wrote_meanwhile_is_not_passed_over(settings, train):
    run = train(settings)
    newest, older = folder_of(run, 12), folder_of(run, 8)
    checkpoint.check_still_newest(run, newest)
    checkpoint.check_still_newest(run.parent / "new", None)
    for stale in (None, older, folder_of(run, 2)):
        with pytest.raises(CheckpointError, match="give the same command again"):
            checkpoint.check_still_newest(run, stale)
    (newest / "optimizer.pt").write_bytes(b"damaged")
    checkpoint.check_still_newest(run, older)


def test_a_local_base_model_that_is_gone_leaves_base_cut_unmeasured_and_says_so(settings, train, tmp_path, capsys):
    first = train(settings)
    start = Path(shutil.copytree(folder_of(first, 12), tmp_path / "released"))
    about = replace(read_provenance(start), extension=tiny_extension("mybase"))
    artifact.write(start / Provenance.FILE, about)
    (start / "manifest.json").unlink()
    run = train(replace(settings, run=str(tmp_path / "next"), start=Start(checkpoint=str(start))))
    assert "mybase is not on this machine: base_cut is not measured" in capsys.readouterr().out
    assert checkpoint.read_state(folder_of(run, 12))[0].base_cut is None


def test_the_record_holds_accuracy_by_block_and_nothing_finer(settings, train):
    evaluations = [line["held_out"] for line in tracking.read(train(settings)) if "held_out" in line]
    assert len(evaluations) == 4
    for one in evaluations:
        assert one.keys() == {"whole", "blocks"}
        assert sum(block["num_selected"] for block in one["blocks"]) == one["whole"]["num_selected"] > 0


def test_a_run_may_begin_with_the_best_weights_of_another_and_nothing_else_of_it(settings, train, tmp_path):
    first = train(settings)
    begin = Start(checkpoint=str(first))
    other = train(replace(settings, run=str(tmp_path / "other"), start=begin))
    chosen = checkpoint.best(first)
    assert read_provenance(folder_of(other, 12)).started_from.name == str(chosen)
    assert [line["step"] for line in tracking.read(other) if "loss" in line] == list(range(1, 13))
    same = train(replace(settings, run=str(tmp_path / "same"), start=Start(checkpoint=str(chosen))))
    assert losses(other) == losses(same) != losses(first)
