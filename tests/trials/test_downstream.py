"""Which trials of the downstream command run, are resumed, skipped, made anew and reported. None is really trained."""

import tomllib
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import DownstreamComparison, DownstreamTrial
from longmlm.errors import TrainingError
from longmlm.settings.downstream import DownstreamTrialConfig
from tests.support.downstream_trials import FakeFinetunes, inputs, settings, trials_of
from tests.support.prepare_settings import written

TASK = """
output = "out"
[task]
kind = "classification"
num_folds = 2
[task.data]
files = ["docs.jsonl"]
[recipe]
learning_rate = [1e-5, 2e-5]
num_epochs = [3]
seeds = [1, 2]
[arms.truncate]
model = "owner/base"
[arms.tfidf]
"""
SLOW, FAST = "truncate/learning_rate-1e-05,num_epochs-3", "truncate/learning_rate-2e-05,num_epochs-3"
OTHERS = ["seed-1-fold-1", "seed-2-fold-0", "seed-2-fold-1"]
TRIALS = Path("out/downstream/trials")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, "task.toml", TASK)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeFinetunes:
    return FakeFinetunes(monkeypatch)


def run(*arguments: str, documents: str = "documents", model: str = "weights") -> DownstreamComparison:
    config = settings(*arguments)
    return trials_of(config, inputs(config, documents, model)).run_all()


def test_values_are_chosen_with_the_first_seed_and_fold_then_all_run(task: str, runs: FakeFinetunes) -> None:
    run(task)
    first = [f"{SLOW}/seed-1-fold-0", f"{FAST}/seed-1-fold-0", "tfidf/as-given/seed-1-fold-0"]
    assert runs.names == [*first, *(f"{FAST}/{one}" for one in OTHERS), *(f"tfidf/as-given/{one}" for one in OTHERS)]
    assert [(trial.learning_rate, trial.recipe.learning_rate) for trial in runs.started[:2]] == [
        (1e-5, (1e-5,)),
        (2e-5, (2e-5,)),
    ]
    assert {(trial.seed, *trial.recipe.seeds) for trial in runs.started} == {(1, 1), (2, 2)}
    assert [trial.num_explained for trial in runs.started] == [3, 3, 3] + [0] * 6


def test_the_comparison_is_written_after_every_trial(task: str, runs: FakeFinetunes) -> None:
    run(task)
    assert [len(trials) for trials in runs.compared] == [*range(1, 10), 9]
    made_by = tomllib.loads(Path("out/downstream/made_by.toml").read_text(encoding="utf-8"))
    assert made_by["arms"]["truncate"]["model"] == "owner/base"


def test_finished_trials_are_not_repeated(task: str, runs: FakeFinetunes) -> None:
    run(task)
    run(task)
    assert len(runs.started) == 9
    assert len(runs.compared[-1]) == 9
    arm = written(Path(), "more.toml", '[arms.last]\nmodel = "owner/base"\n')

    run(task, arm, "--recipe.learning-rate", "1e-5", "2e-5", "3e-5")
    assert len(runs.started) == 9 + 1 + 3 + 3
    assert not any("tfidf" in name for name in runs.names[9:])


def test_trials_of_earlier_settings_are_known(task: str, runs: FakeFinetunes) -> None:
    run(task)
    config = settings(task, "--recipe.num-epochs", "4")
    trials = trials_of(config, inputs(config, "documents", "weights"))
    trials.run_all()
    assert [str(folder.relative_to(TRIALS)) for folder in trials.left_out()] == [
        f"{SLOW}/seed-1-fold-0",
        *(f"{FAST}/{one}" for one in ["seed-1-fold-0", *OTHERS]),
    ]


@pytest.mark.parametrize(
    ("options", "read", "reason"),
    [
        (["--recipe.weight-decay", "0.1"], {}, "other settings of recipe"),
        (["--task.dev-fraction", "0.2"], {}, "other settings of task"),
        ([], {"documents": "others"}, "the documents or the model have changed"),
        ([], {"model": "other weights"}, "the documents or the model have changed"),
    ],
)
def test_a_trial_with_other_settings_or_inputs_starts_anew(
    task: str,
    runs: FakeFinetunes,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    read: dict[str, str],
    reason: str,
) -> None:
    run(task)
    (TRIALS / FAST / "seed-1-fold-0" / "old").touch()
    run(task, *options, **read)
    name = "truncate, learning_rate 2e-05, num_epochs 3, seed 1, fold 0"
    earlier = TRIALS / FAST / "seed-1-fold-0.earlier"
    anew = f"starts anew: {reason}; its earlier result is now in out/downstream/trials/{FAST}/seed-1-fold-0.earlier"
    assert f"[2/9] {name} {anew}\n[2/9] {name} starts\n" in capsys.readouterr().out
    assert not (TRIALS / FAST / "seed-1-fold-0" / "old").exists()
    assert (earlier / "old").exists() and (earlier / "trial.json").exists()
    repeated = [name for name in runs.names[9:] if "truncate" in name]
    assert repeated == [name for name in runs.names[:9] if "truncate" in name]


def test_one_earlier_result_is_kept(task: str, runs: FakeFinetunes) -> None:
    hashes = []
    for decay in ("0.1", "0.2", "0.3"):
        run(task, "--recipe.weight-decay", decay)
        hashes.append(artifact.read(DownstreamTrial, TRIALS / SLOW / "seed-1-fold-0" / "trial.json").settings_sha256)
    assert sorted(path.name for path in (TRIALS / SLOW).iterdir()) == ["seed-1-fold-0", "seed-1-fold-0.earlier"]
    kept = artifact.read(DownstreamTrial, TRIALS / SLOW / "seed-1-fold-0.earlier" / "trial.json")
    assert kept.settings_sha256 == hashes[1] != hashes[2]


def test_an_unfinished_trial_with_other_settings_is_removed(task: str, runs: FakeFinetunes) -> None:
    runs.stopped_at = 0
    with pytest.raises(SystemExit):
        run(task)
    runs.stopped_at = None
    run(task, "--recipe.weight-decay", "0.1")
    assert runs.resumed == []
    assert not [*TRIALS.rglob("*.earlier")]


def test_settings_of_another_version_do_not_cost_finished_trials(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    run(task)
    for path in TRIALS.rglob("trial.toml"):
        path.write_text(f"unknown_key = 1\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    run(task)
    assert len(runs.started) == 9
    run(task, "--recipe.weight-decay", "0.1")
    reason = "it has no trial.toml that this longmlm can read; its earlier result is now in"
    assert capsys.readouterr().out.count(f"starts anew: {reason}") == 5
    assert len([*TRIALS.glob("*/*/*.earlier/trial.json")]) == 5


def test_settings_are_whole_in_spite_of_a_full_disk(
    task: str, runs: FakeFinetunes, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.stopped_at = 0
    with pytest.raises(SystemExit):
        run(task)
    path = TRIALS / SLOW / "seed-1-fold-0" / "trial.toml"
    before = path.read_text(encoding="utf-8")
    write = Path.write_text

    def writes_a_part(path: Path, text: str, encoding: str) -> None:
        write(path, text[:50], encoding=encoding)
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", writes_a_part)
    with pytest.raises(OSError, match="No space left"):
        run(task)
    assert path.read_text(encoding="utf-8") == before


def test_settings_that_change_no_result_repeat_nothing(task: str, runs: FakeFinetunes) -> None:
    run(task)
    run(task, "--runtime.num-threads", "1", "--baseline", "tfidf")
    assert len(runs.started) == 9


def test_a_change_of_explained_documents_repeats_only_the_trials_that_explain(task: str, runs: FakeFinetunes) -> None:
    run(task)
    run(task, "--num-explained", "5")
    assert runs.names[9:] == runs.names[:3]


def test_values_that_train_nothing_do_not_change_an_arm_without_a_model(task: str, runs: FakeFinetunes) -> None:
    run(task)
    run(task, "--recipe.patience", "7", "--recipe.learning-rate", "3e-5")
    assert not any("tfidf" in name for name in runs.names[9:])


def test_a_stopped_command_says_how_to_resume_and_the_trial_goes_on(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.stopped_at = 4
    with pytest.raises(SystemExit) as stopped:
        run(task)
    assert stopped.value.code == 143
    assert "[5/9] truncate, learning_rate 2e-05, num_epochs 3, seed 2, fold 0 stopped by SIGTERM: run the same" in (
        capsys.readouterr().err
    )
    runs.stopped_at = None
    run(task)
    assert runs.resumed == [f"out/downstream/trials/{FAST}/seed-2-fold-0"]
    assert len(runs.started) == len(set(runs.names)) == 9
    output = capsys.readouterr().out
    assert "anew" not in output
    assert output.count(": finished before") == 4
    assert (output.count(" resumes\n"), output.count(" starts\n")) == (1, 4)


def test_a_folder_without_settings_is_made_anew(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    (TRIALS / SLOW / "seed-1-fold-0").mkdir(parents=True)
    run(task)
    assert "seed 1, fold 0 starts anew: it has no trial.toml that this longmlm can read" in capsys.readouterr().out


def test_a_failed_trial_is_recorded_and_the_others_go_on(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(trial: DownstreamTrialConfig) -> str:
        return "error: the loss is not finite" if (trial.arm_name, trial.seed) == ("truncate", 2) else ""

    runs.failures = fails
    comparison = run(task)
    assert len(runs.started) == 9
    names = [f"truncate, learning_rate 2e-05, num_epochs 3, seed 2, fold {fold}" for fold in (0, 1)]
    assert comparison.failed == dict.fromkeys(names, "the loss is not finite")
    assert artifact.read(DownstreamComparison, Path("out/downstream/downstream.json")).failed == comparison.failed
    assert f"[5/9] {names[0]} failed: the loss is not finite; its output is in out/" in capsys.readouterr().out
    runs.failures = lambda _: ""
    assert run(task).failed == {}
    assert len(runs.started) == 11


def test_an_arm_whose_trials_all_fail_is_not_repeated_on_other_folds(task: str, runs: FakeFinetunes) -> None:
    def fails(trial: DownstreamTrialConfig) -> str:
        (Path(trial.folder) / "checkpoints").mkdir()
        return "error: no" if trial.values else ""

    runs.failures = fails
    comparison = run(task)
    assert len(runs.started) == 2 + 4
    assert len(comparison.failed) == 2


def test_the_first_trial_failing_before_training_ends_the_command(task: str, runs: FakeFinetunes) -> None:
    runs.failures = lambda _: "error: owner/base has no config.json"
    with pytest.raises(TrainingError, match=r"seed 1, fold 0 failed: owner/base has no .*log\.txt"):
        run(task)
    assert len(runs.started) == 1


def test_a_command_of_which_all_trials_fail_is_an_error(task: str, runs: FakeFinetunes) -> None:
    def fails(trial: DownstreamTrialConfig) -> str:
        (Path(trial.folder) / "checkpoints").mkdir()
        return "error: no"

    runs.failures = fails
    with pytest.raises(TrainingError, match="every trial failed: truncate, learning_rate 1e-05"):
        run(task)


def test_only_the_best_trial_of_an_arm_keeps_its_model(task: str, runs: FakeFinetunes) -> None:
    run(task)
    assert [str(path.parent.relative_to(TRIALS)) for path in TRIALS.rglob("model")] == [f"{FAST}/seed-2-fold-0"]
    assert not [*TRIALS.rglob("checkpoints")]


def test_keep_weights_keeps_every_model_and_makes_removed_ones_again(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    run(task)
    run(task, "--keep-weights")
    assert len([*TRIALS.rglob("model")]) == 5
    assert len(runs.started) == 9 + 4
    assert capsys.readouterr().out.count("starts anew: its model was removed") == 4


def test_an_untuned_similarity_arm_has_no_values_to_try(task: str, runs: FakeFinetunes) -> None:
    text = TASK.replace("classification", "similarity").replace("[arms.tfidf]", "frozen = true")
    text = "".join(line for line in text.splitlines(True) if not line.startswith(("learning_rate", "num_epochs")))
    run(written(Path(), "pairs.toml", text))
    assert runs.names == [f"truncate/as-given/{one}" for one in ("seed-1-fold-0", *OTHERS)]
