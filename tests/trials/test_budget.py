"""How the time of a budget is spent, remembered and refused. No trial is really trained."""

import shutil
import tomllib
from pathlib import Path

import pytest

from longmlm.errors import ConfigError
from longmlm.reports.comparison import finding
from longmlm.settings.compare import budget_minutes
from longmlm.settings.pipeline import ResolvedPipeline
from tests.support.comparing import PACKING_SECONDS, FakeRuns, best_file, compared, settings
from tests.support.prepare_settings import written

pytestmark = pytest.mark.slow  # seconds per comparison
BASE = 'model = "owner/base"\ncorpus = ["docs.txt"]\nlength = 64\noutput = "out"\n'
TRAINING = '[pretrain.recipe]\nnum_steps = 3000\nlearning_rate = 1e-4\nwarmup_steps = 70\nschedule = "cosine"\n'
NUM_STEPS = int(((600 - 3 * (10 + 5)) / 10 - 10) / 0.5)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    monkeypatch.chdir(tmp_path)
    return FakeRuns(monkeypatch)


def pipeline(text: str = TRAINING) -> str:
    return written(Path(), "mine.toml", BASE + text)


def initialisation(trial: ResolvedPipeline) -> str:
    return trial.extend.recipe.initialisation if trial.extend else ""


def test_a_budget_is_spent_on_probes_rates_and_a_second_seed(runs: FakeRuns) -> None:
    comparison = compared(pipeline(), "--budget", "10m")
    probes, searched, final = runs.started[:3], runs.started[3:11], runs.started[11:]
    assert [*map(initialisation, probes)] == ["fitted", "stretched", "hierarchical"]
    assert [trial.pretrain.recipe.num_steps for trial in probes] == [10] * 3
    assert {trial.pretrain.recipe.num_steps for trial in searched + final} == {NUM_STEPS}
    rates = [trial.pretrain.recipe.learning_rate for trial in searched]
    assert rates == pytest.approx([1e-4, 2e-4, 4e-4, 8e-4] * 2)
    assert [trial.pretrain.recipe.learning_rate for trial in final] == pytest.approx([4e-4] * 2)
    assert [trial.pretrain.recipe.seed for trial in final] == [43, 43]
    assert (len(comparison.probes), len(comparison.trials)) == (3, 10)
    assert runs.clock - PACKING_SECONDS <= 600


def test_the_recommended_pipeline_has_the_length_and_schedule_of_the_users(runs: FakeRuns) -> None:
    compared(pipeline(), "--budget", "10m")
    best = tomllib.loads(Path("out/compare/pipeline.toml").read_text(encoding="utf-8"))
    recipe = best["pretrain"]["recipe"]
    assert recipe.pop("learning_rate") == pytest.approx(4e-4)
    assert recipe == {"num_steps": 3000, "warmup_steps": 70, "schedule": "cosine"}
    assert best["pretrain"].keys() == {"recipe"}
    assert best_file().pretrain.runtime.evaluate_every_steps == 250


@pytest.mark.parametrize("stopped_at", [2, 5, 11])
def test_an_interrupted_search_goes_on_within_its_budget(runs: FakeRuns, stopped_at: int) -> None:
    runs.stopped_at = stopped_at
    with pytest.raises(SystemExit):
        compared(pipeline(), "--budget", "10m")
    runs.stopped_at = None
    comparison = compared(pipeline(), "--budget", "10m")
    assert len(runs.started) == len(set(runs.names)) == 13
    assert len({trial.pretrain.recipe.num_steps for trial in runs.started}) == 2
    assert sum(trial.seconds for trial in (*comparison.probes, *comparison.trials)) == runs.clock - PACKING_SECONDS
    assert runs.clock - PACKING_SECONDS <= 600 + 10 * (stopped_at > 2)
    compared(pipeline(), "--budget", "10m")
    assert len(runs.started) == 13


def test_a_longer_budget_chooses_anew(runs: FakeRuns) -> None:
    compared(pipeline(), "--budget", "10m")
    compared(pipeline(), "--budget", "20m")
    assert len(runs.started) == 13 + 10
    assert runs.started[-1].pretrain.recipe.num_steps > NUM_STEPS


def test_only_trials_of_the_last_length_compete(runs: FakeRuns) -> None:
    def accuracy(trial: ResolvedPipeline) -> float:
        """Returns 45 for probes, so that they recover; then the highest for one rate of the second arm."""
        recipe, name = trial.pretrain.recipe, initialisation(trial)
        if recipe.num_steps == 10:
            return {"hierarchical": 45.0, "fitted": 46.0, "stretched": 47.0}[name]
        return 30 + 2 * (name == "fitted" and recipe.learning_rate > 7e-4) + (recipe.learning_rate < 3e-4) / 2

    runs.accuracy = accuracy
    comparison = compared(pipeline(), "--budget", "10m")
    assert {*map(initialisation, runs.started[3:])} == {"stretched", "fitted"}
    best, second = comparison.arms()[:2]
    assert (best.name, best.values["pretrain.recipe.learning_rate"]) == ("fitted", pytest.approx(8e-4))
    assert [len(arm.trials) for arm in comparison.arms()] == [2, 2] + [1] * 6
    assert second.after == 30.5
    assert best_file().extend.recipe.initialisation == "fitted"


def test_candidates_replace_the_settings_of_the_extension(runs: FakeRuns) -> None:
    text = TRAINING + "[extend.recipe]\nnum_positions = 64\n"
    text += 'initialisation = "hierarchical"\nalpha = 0.3\n'
    compared(pipeline(text), "--budget", "10m")
    assert {trial.extend.recipe.num_positions for trial in runs.started} == {64}


def test_a_window_is_kept_and_tried_with_tiled_positions_too(runs: FakeRuns) -> None:
    text = TRAINING + "[extend.recipe]\nattention_window = 16\nnum_global_tokens = 2\n"
    compared(pipeline(text), "--budget", "10m")
    assert [*map(initialisation, runs.started[:4])] == ["tile", "fitted", "stretched", "hierarchical"]
    recipes = [trial.extend.recipe for trial in (*runs.started, best_file())]
    assert {(recipe.attention_window, recipe.num_global_tokens) for recipe in recipes} == {(16, 2)}


def test_other_rates_are_another_search(runs: FakeRuns) -> None:
    rates = "[compare.search.pretrain.recipe]\nlearning_rate = [1e-4, 2e-4]\n"
    compared(pipeline(TRAINING + rates), "--budget", "10m")
    runs.started.clear()
    compared(pipeline(TRAINING + rates.replace("2e-4", "4e-4")), "--budget", "10m")
    assert 4e-4 in {trial.pretrain.recipe.learning_rate for trial in runs.started}


def test_given_rates_seeds_and_arms_are_used(runs: FakeRuns) -> None:
    arms = "[compare]\nseeds = [7, 8]\n[compare.search.pretrain.recipe]\nlearning_rate = [3e-4, 5e-4, 6e-4]\n"
    arms += '[compare.arms.own.extend.recipe]\ninitialisation = "tile"\n'
    compared(pipeline(TRAINING + arms), "--budget", "10m")
    assert {*map(initialisation, runs.started)} == {"tile"}
    assert [trial.pretrain.recipe.learning_rate for trial in runs.started[1:]] == [3e-4, 5e-4, 6e-4, 3e-4, 5e-4]
    assert [trial.pretrain.recipe.seed for trial in runs.started] == [7] * 4 + [8] * 2


def test_a_failing_candidate_does_not_stop_the_search(runs: FakeRuns) -> None:
    runs.failures = lambda trial: "error: no" if initialisation(trial) == "stretched" else ""
    comparison = compared(pipeline(), "--budget", "10m")
    assert [trial.arm for trial in comparison.failed] == ["stretched"]
    assert {*map(initialisation, runs.started[3:])} == {"hierarchical", "fitted"}


def test_the_time_of_a_failed_candidate_is_spent(runs: FakeRuns) -> None:
    def fail_late(trial: ResolvedPipeline) -> str:
        runs.clock += 300 * (initialisation(trial) == "stretched")
        return "error: no" if initialisation(trial) == "stretched" else ""

    compared(pipeline(), "--budget", "15m")
    unhurried = runs.started[-1].pretrain.recipe.num_steps
    shutil.rmtree("out")
    runs.failures = fail_late
    compared(pipeline(), "--budget", "15m")
    assert runs.started[-1].pretrain.recipe.num_steps < 0.8 * unhurried


def test_a_small_budget_tries_fewer_rates(runs: FakeRuns) -> None:
    compared(pipeline(), "--budget", "3m")
    rates = [round(trial.pretrain.recipe.learning_rate * 1e4) for trial in runs.started[3:7]]
    assert rates == [1, 4, 1, 4]


def test_a_budget_that_is_too_short_says_how_much_is_needed(runs: FakeRuns) -> None:
    needed = (3 * 15 + 6 * (10 + 20 * 0.5)) / 60
    with pytest.raises(ConfigError, match=f"the budget is too short .* set it to {needed + 1:.0f}m or more"):
        compared(pipeline(), "--budget", "2m")


def test_no_trial_starts_once_the_budget_is_spent(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    needed = (3 * 15 + 6 * (10 + 20 * 0.5)) / 60
    with pytest.raises(ConfigError, match=f"the budget is too short .* set it to {needed + 1:.0f}m or more"):
        compared(pipeline(), "--budget", "0.3m")
    assert len(runs.started) == 1
    assert "the budget of 0.3m is spent after 1 trial: 2 trials not started" in capsys.readouterr().out


def test_trials_that_take_longer_than_their_probes_end_the_search_early(
    runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(pipeline: ResolvedPipeline) -> None:
        FakeRuns.train(runs, pipeline)
        runs.clock += 120 * (pipeline.pretrain.recipe.num_steps > 10)

    monkeypatch.setattr(runs, "train", slow)
    comparison = compared(pipeline(), "--budget", "10m")
    assert len(comparison.trials) == 3 and comparison.num_not_started
    assert finding(comparison).endswith(f"; the budget ended before {comparison.num_not_started} more trials")
    assert "the budget of 10m is spent after 6 trials: 5 trials not started" in capsys.readouterr().out
    assert runs.clock - PACKING_SECONDS <= 600 + 180
    assert best_file().pretrain.recipe.learning_rate == pytest.approx(4e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[extend.recipe]\nmode = "generated"\n', "generated positions allow few initialisations: set arms"),
        ("[compare.search.pretrain.recipe]\nweight_decay = [0.0]\n", "only pretrain.recipe.learning_rate can be"),
        ('[compare]\ncontrol = "c"\narms.c.length = 32\narms.d = {}\n', "leave control out"),
        ("[compare]\nseeds = [1, 2, 3]\n", "it tries 2 seeds, compare.seeds has 3: remove the others"),
        (
            "[compare.arms.slow.pretrain.recipe]\nlearning_rate = 1e-5\n",
            r"the budget chooses pretrain\.recipe\.learning_rate: remove it from arms\.slow",
        ),
        (
            '[compare.arms.cosine.pretrain.recipe]\nschedule = "cosine"\n',
            r"the budget chooses pretrain\.recipe\.schedule: remove it from arms\.cosine",
        ),
    ],
)
def test_what_has_no_place_in_a_budget_is_refused(runs: FakeRuns, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"budget: {message}"):
        settings(pipeline(text), "--budget", "10m")


def test_a_pipeline_without_arms_needs_a_budget(runs: FakeRuns) -> None:
    with pytest.raises(ConfigError, match=r"set arms under \[compare\.arms\.NAME\], or give a budget"):
        settings(pipeline())
    with pytest.raises(ConfigError, match="it chooses an initialisation, but extension = false"):
        settings(pipeline(), "--budget", "1h", "--no-extension")


@pytest.mark.parametrize(("text", "minutes"), [("90m", 90), ("1h", 60), ("1.5h", 90), ("2d", 2880)])
def test_budgets_have_units(text: str, minutes: float) -> None:
    assert budget_minutes(text) == minutes


@pytest.mark.parametrize("text", ["60", "h", "-1h", "0h", "1 hour", ""])
def test_other_budgets_are_refused(runs: FakeRuns, text: str) -> None:
    with pytest.raises(ConfigError, match="write a number with a unit"):
        settings(pipeline(), "--budget", text)
