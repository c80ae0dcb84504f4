"""The settings of a trial: where it writes, what an arm may change, and what a control arm gets."""

import re
from pathlib import Path

import pytest
import tomli_w

from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.comparison import Arm
from longmlm.config import parse, resolved_pipeline
from longmlm.errors import ConfigError
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.stages.run import result_of
from longmlm.trials.planned import PlannedTrial, best_pipeline, combinations, planned_trial
from longmlm.trials.running import error_in
from tests.support.comparing import settings
from tests.support.prepare_settings import written

BASE = 'model = "owner/base"\ncorpus = ["docs.txt"]\nlength = 64\noutput = "out"\n'
CONTROL = '[compare]\ncontrol = "own"\n[compare.arms.a]\n[compare.arms.own]\nlength = 32\nextension = false\n'
FOLDER = Path("out/compare/trials/a/as-given/seed-42")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(text: str, arm: str = "a", **values: object) -> PlannedTrial:
    return planned_trial(settings(written(Path(), "mine.toml", text)), arm, values, 42)


def test_a_pipeline_with_explicit_paths_writes_into_the_folder_of_the_trial() -> None:
    resolved = to_toml(parse(ResolvedPipeline, [written(Path(), "base.toml", BASE)]))
    arms = '[compare]\ncontrol = "own"\n[compare.arms.a]\n[compare.arms.own]\nlength = 32\nextension = false\n'
    arms += "[compare.arms.own.pretrain.recipe]\nbatch_tokens = 640\n[compare.arms.own.release]\n"
    for text in (BASE + CONTROL, resolved + arms, f'{BASE}[pretrain]\nrun = "./out/run"\n{CONTROL}'):
        trial = planned(text).pipeline
        assert {str(result_of(stage)) for stage in trial.stages.values()} == {
            str(FOLDER / "long"),
            "out/rows",
            str(FOLDER / "run"),
        }
        assert trial.pretrain.start.checkpoint == trial.extend.output
        assert (trial.evaluate.run, trial.evaluate.long_after) == (str(FOLDER / "run"),) * 2
        assert trial.evaluate.long_before == str(FOLDER / "long")
        own = planned(text, "own").pipeline
        assert (own.extend, own.prepare.recipe.row_length, own.pretrain.start.checkpoint) == (None, 32, "owner/base")
        assert own.prepare.output.startswith("out/compare/rows-") and own.pretrain.rows == own.prepare.output


def test_an_arm_must_not_write_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"arm a: pretrain must not write to elsewhere: leave the folder out"):
        planned(BASE + '[compare.arms.a.pretrain]\nrun = "elsewhere"\n')


def test_the_control_arm_has_as_many_tokens_per_step_as_the_pipeline() -> None:
    assert planned(BASE + CONTROL, "own").pipeline.pretrain.recipe.batch_tokens == 64 * 64
    given = f"{BASE}{CONTROL}[compare.arms.own.pretrain.recipe]\nbatch_tokens = 320\n"
    assert planned(given, "own").pipeline.pretrain.recipe.batch_tokens == 320


def test_an_arm_without_extension_has_no_settings_of_extend() -> None:
    search = "[compare.search]\nextend.recipe.alpha = [0.3, 0.4]\npretrain.recipe.weight_decay = [0.0, 0.1]\n"
    text = f'{BASE}[extend.recipe]\ninitialisation = "hierarchical"\n{CONTROL}{search}'
    config = settings(written(Path(), "mine.toml", text))
    assert len(combinations(config, "a")) == 4
    assert combinations(config, "own") == [{"pretrain.recipe.weight_decay": value} for value in (0.0, 0.1)]
    assert planned_trial(config, "own", {}, 42).pipeline.extend is None


def test_numbers_as_keys_are_merged_into_arrays() -> None:
    sources = '[prepare.recipe.sources.0]\ntext_field = "body"\n'
    arms = "[compare.arms.a]\n[compare.arms.1.prepare.recipe.sources.0]\ntext_field = 'other'\n"
    assert [planned(BASE + sources + arms, arm).pipeline.prepare.recipe.sources[0].text_field for arm in "a1"] == [
        "body",
        "other",
    ]
    assert planned(BASE + sources + arms, "1").pipeline.prepare.recipe.sources[0].files == ("docs.txt",)


def test_a_trial_neither_publishes_nor_tracks_nor_stops_early() -> None:
    text = f"""{BASE}[prepare]
publish = "hf:owner/rows"
public = true
card.license = "cc0-1.0"
[pretrain]
tracking.tracker = "tensorboard"
runtime.stop_when_recovered = true
[release]
publish = "folder:release"
[compare.arms.a]
"""
    trial = planned(text).pipeline
    assert (trial.prepare.publish, trial.prepare.public, trial.release.publish) == (None, False, None)
    assert trial.pretrain.tracking.tracker is None and not trial.pretrain.runtime.stop_when_recovered


SEARCH = """[extend.recipe]
initialisation = "tile"
[pretrain.recipe]
decay_steps = 9
schedule = "constant-then-decay"
[compare.arms.a]
[compare.search.pretrain.recipe]
schedule = ["linear", "constant-then-decay"]
"""


@pytest.mark.parametrize("schedule", ["linear", "constant-then-decay"])
def test_the_file_of_a_trial_has_no_setting_without_effect(schedule: str) -> None:
    """Such as the seed of a table without randomness: `longmlm run` would refuse it."""
    trial = planned(BASE + SEARCH, **{"pretrain.recipe.schedule": schedule})
    pipeline = parse(ResolvedPipeline, [written(Path(), "trial.toml", tomli_w.dumps(trial.tables))])
    assert (pipeline.extend.recipe.seed, pipeline.pretrain.recipe.seed) == (0, 42)
    assert pipeline.pretrain.recipe.decay_steps == (0 if schedule == "linear" else 9)
    best = best_pipeline(settings(written(Path(), "mine.toml", BASE + SEARCH)), Arm(name="a", values={}, trials=()))
    assert parse(ResolvedPipeline, [written(Path(), "best.toml", tomli_w.dumps(best))])


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("[compare.arms.a.release.card]\ntitle = 'T'\n", "release.card.title: it has no effect, since trials end with"),
        ("[compare.arms.a.evaluate.recipe]\nprecision = 'no'\n", "evaluate.recipe.precision: it has no effect"),
        ("[compare.arms.a.pretrain.recipe]\ndecay_steps = 3\n", "decay_steps: it has no effect with schedule"),
        ("[compare.arms.a.pretrain.runtime]\nstop_when_recovered = true\n", "stop_when_recovered: remove it"),
    ],
)
def test_a_setting_of_an_arm_that_changes_no_trial_is_refused(arm: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned(BASE + arm)


def test_the_best_arm_keeps_its_own_rows_and_the_rest_of_the_pipeline() -> None:
    text = f"{BASE}[pretrain.runtime]\nstop_when_recovered = true\n[compare.arms.a]\n[compare.arms.b]\nlength = 96\n"
    config = settings(written(Path(), "mine.toml", text))
    tables = best_pipeline(config, Arm(name="b", values={}, trials=()))
    rows = planned_trial(config, "b", {}, 42).pipeline.prepare.output
    best = resolved_pipeline(tables)
    assert best.prepare.output == best.pretrain.rows == best.evaluate.rows == best.release.rows == rows != "out/rows"
    assert best.pretrain.runtime.stop_when_recovered and best.output == "out"
    assert best_pipeline(config, Arm(name="a", values={}, trials=())) == config.tables


def test_names_of_folders_are_plain_and_short() -> None:
    text = BASE + "[compare.arms.a]\n"
    long, other = (planned(text, model=f"../x/{'y' * 260}{end}").folder for end in "ab")
    assert long.parents[1] == other.parents[1] == Path("out/compare/trials/a")
    assert long != other and len(long.parent.name) < 120 and "/" not in long.parent.name


def test_evaluation_needs_a_base_model() -> None:
    scratch = BASE.partition("\n")[2] + 'extension = false\n[pretrain.start]\narchitecture = "c"\ntokenizer = "t"\n'
    with pytest.raises(ConfigError, match="arm a: until = evaluate, but there is no base model"):
        planned(scratch + '[compare]\nuntil = "evaluate"\n[compare.arms.a]\n')


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('baseline = "none"', "baseline = none: there is no such arm, only a, b"),
        ('control = "none"', "control = none: there is no such arm"),
        ('control = "a"\nbaseline = "a"', "baseline and control must be different arms"),
        ("seeds = [1, 1]", "seeds must be different"),
        ("seeds = []", "seeds must be different numbers, at least one"),
        ("search.pretrain.recipe.learning_rate = 1e-4", "search.pretrain.recipe.learning_rate needs a list of values"),
        ("search.pretrain.recipe.seed = [1, 2]", "search.pretrain.recipe.seed: remove it: set compare.seeds"),
        ('search.output = ["x", "y"]', "search.output: remove it: each trial has a folder of its own"),
        ('arms.c.until = "release"', "arms.c.until: remove it: set compare.until, for all arms"),
        ("search.pretrain.recipe.weight_decay = [0, 0.0]", "search.pretrain.recipe.weight_decay: 0.0 is listed twice"),
        (
            "search.pretrain.recipe.num_steps = [5, 9]\narms.c.pretrain.recipe.num_steps = 7",
            "arms.c sets pretrain.recipe.num_steps, which search tries for every arm: remove one of them",
        ),
        ('arms.c.pretrain.rows = "x"', "arms.c.pretrain.rows: remove it: trials are trained on the rows that prepare"),
        ('control = "a"', "control = a trains the base model at its own length: set extension = false and length in"),
        ("arms.c.extension = false", "arms.c has extension = false: set its length, the base model's positions"),
        ('arms."a/b" = {}', "arm 'a/b': a name may contain only letters, digits, -, _, + and ."),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(table: str, message: str) -> None:
    text = f"{BASE}[compare.arms]\na = {{}}\nb = {{}}\n"
    with pytest.raises(ConfigError) as raised:
        settings(written(Path(), "mine.toml", text), written(Path(), "wrong.toml", f"[compare]\n{table}\n"))
    assert message in str(raised.value)


def test_a_control_arm_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="control = own is the only arm: add one to compare"):
        planned(BASE + CONTROL.replace("[compare.arms.a]\n", ""))


def test_the_error_of_a_trial_is_longmlms_own_if_it_has_one(tmp_path: Path) -> None:
    log, earlier = tmp_path / "log.txt", "error: of an earlier attempt\n"
    tracker, own = "wandb failed (CommError: no answer); training is not affected", "error: the loss is not finite"
    log.write_text(f"{earlier}{tracker}\n{own}\nlast line\n", encoding="utf-8")
    assert error_in(log, len(earlier), 2) == own.removeprefix("error: ")
    log.write_text("Error:\nlast line\n", encoding="utf-8")
    assert error_in(log, 0, 1) == "Error:"
    for text, expected in ((f"{tracker}\nlast line\n", tracker), ("one\nlast line\n", "last line"), ("", "no output")):
        log.write_text(text, encoding="utf-8")
        assert error_in(log, 0, 1) == expected
        assert "killed by SIGKILL" in error_in(log, 0, -9)


def test_a_searched_length_is_that_of_rows_and_positions_that_the_pipeline_states() -> None:
    resolved = to_toml(parse(ResolvedPipeline, [written(Path(), "base.toml", BASE)]))
    text = f"{resolved}[compare.arms.a]\n[compare.search]\nlength = [64, 96]\n"
    for length in (64, 96):
        trial = planned(text, length=length).pipeline
        assert (trial.prepare.recipe.row_length, trial.extend.recipe.num_positions) == (length, length)
