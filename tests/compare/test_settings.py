"""The settings of a comparison: what is refused, what is published, and where they are explained."""

from pathlib import Path

import pytest

from docs.scripts.settings_reference import settings_table
from longmlm.artifacts.artifact import to_toml
from longmlm.compare import command
from longmlm.compare.comparison import Arm, Comparison
from longmlm.compare.planned import FOLDER, variant
from longmlm.compare.settings import ComparedPipeline, CompareSettings
from longmlm.config import read
from longmlm.errors import ConfigError
from longmlm.experiments.experiment import Trial
from longmlm.experiments.processes import TRIAL
from longmlm.needs import check_inputs
from longmlm.reports.pages import made_with
from longmlm.reports.tables import Table
from longmlm.settings.publishing import redacted_address
from tests.compare.fake_runs import settings
from tests.support.pages import ROOT
from tests.support.prepare_settings import written

BASE = 'model = "base"\ncorpus = ["docs.txt"]\nlength = 64\noutput = "out"\n'
ARMS = "[compare.arms]\na = {}\nb = {}\n"
EXPERIMENTS = ROOT / "docs" / "experiments"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('compare.baseline = "none"', "baseline = none: there is no such arm, only a, b"),
        ('compare.control = "none"', "control = none: there is no such arm"),
        ('compare = {control = "a", baseline = "a"}', "baseline and control must be different arms"),
        ("compare.seeds = [1, 1]", "seeds must be different"),
        ("compare.seeds = []", "seeds must be different numbers, at least one"),
        (
            "compare.search.pretrain.recipe.weight_decay = 0",
            "search.pretrain.recipe.weight_decay needs a list of values",
        ),
        ("compare.search.pretrain.recipe.seed = [1, 2]", "search.pretrain.recipe.seed: remove it: set compare.seeds"),
        ('compare.search.output = ["x"]', "search.output: remove it: each trial has a folder of its own"),
        ('compare.arms.c.until = "release"', "arms.c.until: remove it: set compare.until, for all arms"),
        (
            "compare.search.pretrain.recipe.weight_decay = [0, 0.0]",
            "search.pretrain.recipe.weight_decay: 0.0 is listed",
        ),
        (
            "compare = {search.pretrain.recipe.num_steps = [5, 9], arms.c.pretrain.recipe.num_steps = 7}",
            "arms.c sets pretrain.recipe.num_steps, which search tries for every arm: remove one of them",
        ),
        ('compare.arms.c.rows = "x"', "arms.c.rows: remove it: trials are trained and evaluated on the rows that"),
        (
            'compare.control = "a"',
            "control = a trains the base model at its own length: set extension = false and length",
        ),
        (
            "compare.arms.c.extension = false",
            "arms.c has extension = false: set its length, the base model's positions",
        ),
        ('compare.arms."a/b" = {}', "arm 'a/b': a name may contain only letters, digits, -, _, + and ."),
        ("pretrain.dry_run = true", "pretrain.dry_run: remove it: trials train"),
        ("tables = {length = 3}", "tables: remove it: longmlm fills it in"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(table: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(written(Path(), "mine.toml", BASE + ARMS), written(Path(), "wrong.toml", f"{table}\n"))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "search.pretrain.recipe.learning_rate = [1e-4]",
            "learning_rate needs an arm: set one under [compare.arms.NAME]",
        ),
        ('baseline = "a"', "baseline and control name arms: set these under [compare.arms.NAME]"),
        (
            'control = "own"\narms.own = {length = 32, extension = false}',
            "control = own is the only arm: add one to compare",
        ),
    ],
)
def test_settings_that_need_an_arm_are_refused(table: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(written(Path(), "mine.toml", f"{BASE}[compare]\n{table}\n"))
    assert message in str(raised.value)


def test_a_comparison_publishes_nothing_and_writes_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://me:planted@host/rows"
    publishing = f'publish = "{address}"\ncard.license = "mit"\n'
    text = f"{BASE}[release]\n{publishing}recipe.onnx = true\n[prepare]\n{publishing}{ARMS}"
    config = settings(written(Path(), "mine.toml", text))
    check_inputs(config)  # neither the address nor what the release needs is looked for: trials are checked one by one
    trial = variant(config, Trial(arm="a", seed=42)).planned()
    assert "publish" not in trial.files[TRIAL]
    comparison = Comparison(model="m", row_length=64, baseline="a")
    monkeypatch.setattr(Comparison, "arms", lambda _: [Arm(name="a", values={}, trials=())])
    monkeypatch.setattr(command.RunningComparison, "run_all", lambda _: comparison)
    monkeypatch.setattr(command, "finding", lambda _: "")
    monkeypatch.setattr(command, "arms_table", lambda _: Table(["arm"], [["a"]]))
    command.compare(config)
    best = (Path("out") / FOLDER / command.PIPELINE).read_text(encoding="utf-8")
    assert redacted_address(address) in best
    assert "planted" not in best + made_with("compare", {"tables": config.tables})


def test_paths_of_arms_start_from_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = BASE.replace('"base"', '"~/base"') + '[compare.arms.other]\nmodel = "~/other"\n'
    config = read(ComparedPipeline, [Path(written(Path(), "mine.toml", text))])
    assert to_toml(config).count(str(tmp_path / "home")) > 2
    assert "~" not in to_toml(config)


@pytest.mark.parametrize("path", sorted((EXPERIMENTS / "compare").glob("*.toml")), ids=lambda path: path.stem)
def test_comparisons_of_the_experiments_are_of_valid_pipelines(path: Path) -> None:
    files = {
        "minilm": ["minilm-1536"],
        "mini": ["demo", str(EXPERIMENTS / "mini.toml")],
        "bert": [str(EXPERIMENTS / "bert-mini.toml")],
        "albert": ["albert-mini"],
    }
    config = settings(*files.get(path.stem.partition("-")[0], []), str(path))
    seed = config.compare.seeds[0]
    assert all(variant(config, Trial(arm=arm, seed=seed)).pipeline for arm in config.compare.arms)
    assert len(config.compare.arms) >= 2


def test_the_page_about_comparisons_lists_the_settings() -> None:
    assert settings_table(CompareSettings) in (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
