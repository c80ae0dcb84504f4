"""The run command's checks before a stage starts: what was made from other settings or text is never taken for done."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.provenance import AddedTokens, ModelSource, Provenance
from longmlm.artifacts.run import RunSummary, TrainState
from longmlm.config import parse
from longmlm.data import disk
from longmlm.errors import DataError, FolderError
from longmlm.folders import MANIFEST, sha256_of
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import PACKAGE
from longmlm.stages import run
from tests.support.tiny import tiny_extension


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline's output folder in which every stage has its result and the record of its settings."""
    monkeypatch.chdir(tmp_path)
    for name, stage in settings().stages.items():
        run.result_of(stage).mkdir(parents=True)
        (tmp_path / "out" / "done").mkdir(exist_ok=True)
        (tmp_path / "out" / "done" / f"{name}.toml").write_text(to_toml(stage), encoding="utf-8")
    return tmp_path / "out"


def settings(*options: str) -> ResolvedPipeline:
    base = ("--model", "base", "--corpus", "text.jsonl", "--length", "40", "--output", "out")
    return parse(ResolvedPipeline, [*base, *options])


@pytest.mark.parametrize(
    ("option", "removed"),
    [("--extend.recipe.smooth-terms=5", "long"), ("--prepare.recipe.held-out-fraction=0.2", "rows")],
)
def test_a_run_is_not_taken_for_one_of_the_model_or_rows_that_replace_its_own(
    folder: Path, option: str, removed: str
) -> None:
    for name in (removed, "release"):
        (folder / name).rmdir()
    with pytest.raises(FolderError, match=r"out/run was made with other settings: recipe\..*set them back, or name"):
        staleness.check_results(settings(option))
    (folder / "run").rmdir()
    staleness.check_results(settings(option))


def test_an_output_that_is_a_file_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").touch()
    with pytest.raises(FolderError, match="^out is a file: remove it or name another output$"):
        run.run_pipeline(settings())


def test_stages_after_one_whose_result_is_made_again_check_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rows", "release"):
        (folder / name).rmdir()
    for name in ("long", "evaluation"):
        (folder / name / MANIFEST).touch()
    started = []

    def run_stage(_config: ResolvedPipeline, name: str, _label: str) -> None:
        started.append(name)

    monkeypatch.setattr(run, "run_stage", run_stage)
    monkeypatch.setattr(staleness, "is_trained", lambda _: True)
    monkeypatch.setattr(staleness, "is_extended", lambda _: True)
    monkeypatch.setattr(run, "summary", lambda _: "")
    run.run_pipeline(settings())
    assert started == ["prepare", "pretrain", "evaluate", "release"]


def test_a_stage_beyond_until_does_not_keep_the_record_of_an_earlier_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rows", "release"):
        (folder / name).rmdir()
    (folder / "long" / MANIFEST).touch()
    monkeypatch.setattr(run, "run_stage", lambda *_: None)
    monkeypatch.setattr(staleness, "is_trained", lambda _: True)
    monkeypatch.setattr(run, "summary", lambda _: "")
    run.run_pipeline(settings("--until", "prepare"))
    (folder / "rows").mkdir()
    (folder / "rows" / MANIFEST).touch()
    assert staleness.is_made(settings(), "prepare")
    assert not staleness.is_made(settings(), "pretrain")


@pytest.mark.parametrize("until", ["prepare", "pretrain", "evaluate"])
def test_a_finished_pipeline_may_be_run_again_up_to_an_earlier_stage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    with pytest.raises(FolderError, match=r"extend has to run again, but out/release has its earlier result"):
        staleness.check_results(settings("--until", until))
    monkeypatch.setattr(staleness, "is_made", lambda *_: True)
    staleness.check_results(settings("--until", until))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_terms_are_those_of_the_long_model(folder: Path, is_recorded: bool) -> None:
    terms, config = folder.parent / "terms.txt", settings("--extend.recipe.add-tokens", "terms.txt")
    terms.write_text("myocarditis\n", encoding="utf-8")
    record = folder / "done" / "extend.toml"
    record.unlink()
    if is_recorded:
        record.write_text(to_toml(config.extend), encoding="utf-8")
    (folder / "done" / "prepare.toml").unlink()
    (folder / "long" / MANIFEST).touch()
    added = AddedTokens(base=ModelSource(name="base"), file_sha256=sha256_of(terms), num_added=1, num_skipped=0)
    artifact.write(folder / "long" / Provenance.FILE, Provenance(added_tokens=added))
    recipe = replace(config.extend.recipe, num_positions=None)
    config = replace(config, extend=replace(config.extend, recipe=recipe)) if not is_recorded else config
    assert staleness.is_done(config, "extend")
    staleness.check_inputs(config)
    terms.write_text("myocarditis\nsarcoidosis\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"out/long was made from other text than terms.txt holds now"):
        staleness.check_inputs(config)


def test_a_long_model_without_the_terms_is_not_taken_for_one_with_them(folder: Path) -> None:
    (folder / "done" / "extend.toml").unlink()
    (folder / "long" / MANIFEST).touch()
    config = settings("--extend.recipe.initialisation", "hierarchical")
    about = Provenance(extension=tiny_extension("base"))
    artifact.write(folder / "long" / Provenance.FILE, about)
    assert staleness.is_done(config, "extend")
    assert not staleness.is_done(settings("--extend.recipe.add-tokens", "terms.txt"), "extend")


def test_a_long_model_of_another_initialisation_is_not_taken_for_this_one(folder: Path) -> None:
    (folder / "done" / "extend.toml").unlink()
    (folder / "long" / MANIFEST).touch()
    stretched = tiny_extension("base", initialisation="stretched", smooth_terms=6)
    artifact.write(folder / "long" / Provenance.FILE, Provenance(extension=stretched))
    options = ("--extend.recipe.initialisation=stretched", "--extend.recipe.smooth-terms=6")
    assert staleness.is_done(settings(*options), "extend")
    for other in ("smooth-terms=5", "smooth-terms=7"):
        assert not staleness.is_done(settings(*options, f"--extend.recipe.{other}"), "extend")
    assert not staleness.is_done(settings(), "extend")


def test_a_disk_that_is_too_small_is_refused_before_any_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    Path("text.jsonl").write_text('{"text": "A text."}\n', encoding="utf-8")
    for name in ("long", "run", "rows", "evaluation", "release"):
        (folder / name).rmdir()
    shutil.rmtree(folder / "done")
    started: list[str] = []
    monkeypatch.setattr(run, "run_stage", lambda _config, name, _label: started.append(name))
    monkeypatch.setattr(run, "summary", lambda _config: "")
    monkeypatch.setattr(disk, "free_bytes", lambda _: 200_000_000)
    with pytest.raises(
        FolderError, match=r"^the results in out need about 0\.[23]\d GB more \(.*\), 0\.20 GB are free: "
    ):
        run.run_pipeline(settings())
    assert not started
    run.run_pipeline(settings("--pretrain.runtime.save-every-steps", "3000"))
    assert started == ["extend", "prepare", "pretrain", "evaluate", "release"]


def test_a_run_is_trained_once_its_last_step_is_evaluated(tmp_path: Path) -> None:
    stage = replace(settings("--pretrain.recipe.num-steps", "8").pretrain, run=str(tmp_path))
    for step, evaluated_at in ((8, 8), (8, 4), (4, 4)):
        state = TrainState(step=step, accuracy=40.0, evaluated_at_step=evaluated_at)
        summary = RunSummary(state=state, train_tokens_per_second=1.0, num_processes=1, peak_memory_bytes=1)
        artifact.write(tmp_path / RunSummary.FILE, summary)
        assert staleness.is_trained(stage) == (step == evaluated_at == 8)


def test_results_of_a_base_model_that_has_changed_are_refused(folder: Path) -> None:
    base, config = folder.parent / "base", settings()
    base.mkdir()
    (base / "config.json").write_text("{}", encoding="utf-8")
    for weights in ("first", "second"):
        (base / "model.safetensors").write_text(weights, encoding="utf-8")
        if weights == "second":
            with pytest.raises(DataError, match=r"out was made from other weights than base holds now: name another"):
                staleness.check_base_model(config)
            for made in ("long", "run"):
                (folder / made).rmdir()
        staleness.check_base_model(config)
        staleness.check_base_model(config)


def test_a_finished_pipeline_that_publishes_its_rows_can_be_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staleness, "is_trained", lambda _: True)
    config = settings("--prepare.publish", "hf:me/rows", "--prepare.card.license", "mit")
    (folder / "rows" / MANIFEST).touch()
    (folder / "done" / "prepare.toml").write_text(to_toml(config.prepare), encoding="utf-8")
    assert not staleness.is_done(config, "prepare")
    (folder / "long" / MANIFEST).touch()
    staleness.check_results(config)


def test_the_time_left_is_printed_off_a_terminal_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, the bar of the stage shows it."""
    for is_terminal, num_lines in ((False, 1), (True, 0)):
        monkeypatch.setattr(run, "is_terminal", lambda shown=is_terminal: shown)
        lines = run.time_left_lines(settings(), "pretrain", "[3/5] pretrain:")
        assert len([*itertools.islice(lines, 1)]) == num_lines
