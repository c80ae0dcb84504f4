"""The settings of a trial: where it writes, what an arm may change, and what a control arm gets."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from longmlm.artifacts.artifact import to_toml
from longmlm.compare.command import RunningComparison
from longmlm.compare.comparison import Arm
from longmlm.compare.planned import Variant, best_pipeline, combinations, variant
from longmlm.config import parse, resolved_pipeline
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import ConfigError, DataError
from longmlm.experiments.experiment import Trial
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import PACKAGE
from longmlm.stages.run import result_of
from longmlm.staleness import check_text
from tests.compare.fake_runs import settings
from tests.support.prepare_settings import written

BASE = 'model = "owner/base"\ncorpus = ["docs.txt"]\nlength = 64\noutput = "out"\n'
CONTROL = '[compare]\ncontrol = "own"\n[compare.arms.a]\n[compare.arms.own]\nlength = 32\nextension = false\n'
FOLDER = Path("out/compare/trials/a/as-given/seed-42")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(text: str, arm: str = "a", **values: object) -> Variant:
    return variant(settings(written(Path(), "mine.toml", text)), Trial(arm=arm, values=values, seed=42))


def test_an_arm_with_its_own_initialisation_has_none_of_the_settings_of_the_pipelines() -> None:
    text = BASE + "[extend.recipe.distillation]\nnum_tokens = 5000\n[extend.recipe]\nsmooth_terms = 5\n"
    arms = '[compare.arms.a.extend.recipe]\ninitialisation = "fitted"\n[compare.arms.own]\n'
    recipes = [planned(text + arms, arm).pipeline.extend.recipe for arm in ("a", "own")]
    assert [(recipe.initialisation, recipe.smooth_terms, recipe.distillation.num_tokens) for recipe in recipes] == [
        ("fitted", 5, 300_000),
        ("distilled", 5, 5000),
    ]
    arms = "[compare.arms.a.extend.recipe]\nattention_window = 16\n[compare.arms.own]\n"
    assert planned(text + arms).pipeline.extend.recipe.initialisation == "tile"
    arms = '[compare.arms.a.extend.recipe]\nadd_tokens = "terms.txt"\n[compare.arms.own]\n'
    assert planned(text + arms).pipeline.extend.recipe.initialisation == "fitted"
    searched = {"extend.recipe.initialisation": "tile"}
    assert planned(f"{text}[compare.arms.a]\n[compare.arms.own]\n", **searched).pipeline.extend.recipe.smooth_terms == 4


def test_an_arm_that_keeps_the_initialisation_keeps_its_settings() -> None:
    text = f'{BASE}[extend.recipe]\ninitialisation = "hierarchical"\nalpha = 0.3\nattention_window = 16\n'
    arms = "[compare.arms.a.extend.recipe]\nattention_window = 8\n[compare.arms.own]\n"
    for arm, window in (("a", 8), ("own", 16)):
        recipe = planned(text + arms, arm).pipeline.extend.recipe
        assert (recipe.initialisation, recipe.alpha, recipe.attention_window) == ("hierarchical", 0.3, window)


def test_a_pipeline_with_all_settings_writes_into_the_folder_of_the_trial() -> None:
    resolved = to_toml(parse(ResolvedPipeline, [written(Path(), "base.toml", BASE)]))
    arms = '[compare]\ncontrol = "own"\n[compare.arms.a]\n[compare.arms.own]\nlength = 32\nextension = false\n'
    arms += "[compare.arms.own.pretrain.recipe]\nbatch_tokens = 640\n[compare.arms.own.release]\n"
    for text in (BASE + CONTROL, resolved + arms, f'rows = "out/rows"\n{BASE}{CONTROL}'):
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
    assert variant(config, Trial(arm="own", seed=42)).pipeline.extend is None


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
    rows = variant(config, Trial(arm="b", seed=42)).pipeline.prepare.output
    best = resolved_pipeline(tables)
    assert best.prepare.output == best.pretrain.rows == best.evaluate.rows == best.release.rows == rows != "out/rows"
    assert best.pretrain.runtime.stop_when_recovered and best.output == "out"
    assert best_pipeline(config, Arm(name="a", values={}, trials=())) == config.tables


def test_evaluation_needs_a_base_model() -> None:
    scratch = BASE.partition("\n")[2] + 'extension = false\n[pretrain.start]\narchitecture = "c"\ntokenizer = "t"\n'
    with pytest.raises(ConfigError, match="arm a: until = evaluate, but there is no base model"):
        planned(scratch + '[compare]\nuntil = "evaluate"\n[compare.arms.a]\n')


def test_a_searched_length_is_that_of_rows_and_positions_that_the_pipeline_states() -> None:
    resolved = to_toml(parse(ResolvedPipeline, [written(Path(), "base.toml", BASE)]))
    text = f"{resolved}[compare.arms.a]\n[compare.search]\nlength = [64, 96]\n"
    for length in (64, 96):
        trial = planned(text, length=length).pipeline
        assert (trial.prepare.recipe.row_length, trial.extend.recipe.num_positions) == (length, length)


RENAMED = """
model = "{model}"
corpus = ["{text}"]
length = 384
output = "{output}"
[prepare.recipe]
held_out_fraction = 0.3
[compare.arms.a]
"""
NAMES = {"model": "base", "text": "docs.jsonl", "output": "out"}


def write_text(num_documents: int) -> None:
    lines = [
        json.dumps({"text": f"One sentence of document {number}. And another."}) for number in range(num_documents)
    ]
    Path("docs.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def base_and_text() -> None:
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    write_text(20)


def key_of(names: dict[str, str]) -> dict[str, str]:
    return planned(RENAMED.format(**names)).planned().key


@pytest.mark.usefixtures("base_and_text")
def test_another_path_of_the_same_things_does_not_change_a_trial() -> None:
    before = key_of(NAMES)
    for folder in (".", Path.cwd()):
        assert key_of({name: f"{folder}/{path}" for name, path in NAMES.items()}) == before
    for folder in ("linked", "moved"):
        Path(folder).mkdir()
    for name in ("base", "docs.jsonl"):
        Path("linked", name).symlink_to(Path(name).resolve())
    assert key_of({name: f"linked/{path}" for name, path in NAMES.items()}) == before
    for name in ("base", "docs.jsonl"):
        shutil.move(name, f"moved/{name}")
    assert key_of({name: f"moved/{path}" for name, path in NAMES.items()}) == before


@pytest.mark.usefixtures("base_and_text")
def test_another_model_changes_a_trial() -> None:
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    before, after = (key_of(NAMES | {"model": name}) for name in ("base", "other"))
    assert before["settings or inputs of extend"] != after["settings or inputs of extend"]


@pytest.mark.usefixtures("base_and_text")
def test_a_comparison_of_rows_of_other_text_is_refused() -> None:
    config = settings(written(Path(), "mine.toml", RENAMED.format(**NAMES)))
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    one = variant(config, Trial(arm="a", seed=42))
    shutil.copytree("out/rows", "moved/rows")
    check_text(replace(one.pipeline.prepare, output="moved/rows"))
    write_text(22)
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now"):
        RunningComparison(config).run_all()
    Path("docs.jsonl").unlink()
    check_text(one.pipeline.prepare)
