"""An output that cannot be written: every command refuses it at its start, and before anything else is read."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longmlm.config import read, resolved_pipeline
from longmlm.errors import FolderError
from longmlm.folders import new_folder, replaced_folder
from longmlm.needs import check_inputs
from longmlm.processes import exclusive_lock
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig
from longmlm.stages.checkpoints import export_checkpoint
from tests.support.obstacles import everything


def a_link_to_nothing(folder: Path) -> Path:
    (folder / "out").symlink_to("nowhere")
    return folder / "out"


def a_link_to_itself(folder: Path) -> Path:
    (folder / "out").symlink_to("out")
    return folder / "out"


def below_a_link_to_nothing(folder: Path) -> Path:
    return a_link_to_nothing(folder) / "deep" / "out"


def a_file(folder: Path) -> Path:
    (folder / "out").write_text("mine")
    return folder / "out"


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "deep" / "out"


def a_name_too_long_for_a_temporary_folder(folder: Path) -> Path:
    return folder / ("x" * 250)


MAKERS: dict[Callable[[Path], Path], tuple[type[Exception], str]] = {
    a_link_to_nothing: (FolderError, "out is a link to nowhere, which does not exist: remove the link or name another"),
    a_link_to_itself: (FolderError, "out is a link to out, which does not exist: remove the link or name another"),
    below_a_link_to_nothing: (FolderError, "out is a link to nowhere, which does not exist"),
    a_file: (FolderError, "out (is a file: remove it or name another output|already exists)"),
    below_a_file: (FolderError, "out (is a file: remove it or name another output|already exists)"),
    a_name_too_long_for_a_temporary_folder: (OSError, r"File name too long: .*xxxx"),
}
GONE = "gone"  # an input: what is read before the output is checked gives another error


def pipeline(output: str, **more: Any) -> Any:
    return resolved_pipeline({"model": GONE, "corpus": [GONE], "length": 64, "output": output} | more)


def with_output(stage: str, **output: str) -> Any:
    config = pipeline("fine")
    return replace(config, **{stage: replace(getattr(config, stage), **output)})


def plan(output: str) -> PlanConfig:
    Path("plan.toml").write_text(f'model = "{GONE}"\ncorpus = ["{GONE}"]\nlength = 64\noutput = "{output}"\n')
    return read(PlanConfig, [Path("plan.toml")])


RECIPE = PretrainRecipe(num_steps=1, batch_tokens=4096, learning_rate=1e-4)
ROWS = PrepareRecipe(tokenizer=GONE, row_length=64, sources=(Source(files=(GONE,)),))
COMMANDS: dict[str, Callable[[str], Any]] = {
    "prepare": lambda output: PrepareConfig(output=output, recipe=ROWS),
    "extend": lambda output: ExtendConfig(base=GONE, output=output, recipe=ExtendRecipe(num_positions=64)),
    "pretrain": lambda output: PretrainConfig(run=output, rows=GONE, start=Start(checkpoint=GONE), recipe=RECIPE),
    "evaluate": lambda output: EvaluateConfig(rows=GONE, output=output, base=GONE, long_after=GONE),
    "release": lambda output: ReleaseConfig(model=GONE, rows=GONE, output=output, card=ReleaseCard(title="T")),
    "plan": plan,
    "run": pipeline,
    "run, rows": lambda output: pipeline("fine", rows=output),
    "run, long model": lambda output: with_output("extend", output=output),
    "run, training": lambda output: with_output("pretrain", run=output),
    "run, evaluation": lambda output: with_output("evaluate", output=output),
    "run, release": lambda output: with_output("release", output=output),
}


PAIRS = [(command, a_file) for command in COMMANDS]  # one check for all commands: each of them, and each obstacle
PAIRS += [(command, make) for command in ("extend", "pretrain", "run, release") for make in MAKERS if make != a_file]


@pytest.mark.parametrize(("command", "make"), PAIRS)
def test_every_command_refuses_it_before_it_reads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, make: Callable[[Path], Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, words = MAKERS[make]
    config = COMMANDS[command](str(make(tmp_path)))
    before = everything(tmp_path)
    with pytest.raises(kind, match=words):
        check_inputs(config)
    assert everything(tmp_path) == before


WRITING_INTO = ("pretrain", "evaluate", "plan", "run")  # a folder that is there


@pytest.mark.parametrize(
    ("command", "name"), [*((command, "new") for command in COMMANDS), *((command, "out") for command in WRITING_INTO)]
)
def test_every_command_needs_the_permission_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked" / "out").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in Path(path).parts)  # root may write everywhere
    with pytest.raises(FolderError, match="locked.* is not writable for this user"):
        check_inputs(COMMANDS[command](str(tmp_path / "locked" / name)))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("writer", [new_folder, exclusive_lock, lambda folder: replaced_folder(folder, ["a"])])
def test_every_writer_refuses_it_before_the_work(
    tmp_path: Path, make: Callable[[Path], Path], writer: Callable[[Path], Any]
) -> None:
    output = make(tmp_path)
    before = everything(tmp_path)
    with pytest.raises((FolderError, OSError), match="out|too long"), writer(output):
        pytest.fail("the work began")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("make", [*MAKERS][:-1])
def test_a_checkpoint_is_exported_to_no_such_output(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(FolderError, match="out"):
        export_checkpoint(CheckpointsConfig(run=GONE, action="export", output=str(make(tmp_path))))


@pytest.mark.parametrize("name", ["out.partial", "out.earlier.partial"])
def test_a_folder_of_the_user_with_a_temporary_name_is_refused_before_an_evaluation(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").write_text("mine")
    with pytest.raises(FolderError, match=f"{name} is in the way"):
        check_inputs(EvaluateConfig(rows=GONE, output=str(tmp_path / "out"), base=GONE, long_after=GONE))


def test_an_evaluation_does_not_replace_a_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"notes\.txt"):
        check_inputs(EvaluateConfig(rows=GONE, output=str(tmp_path), base=GONE, long_after=GONE))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_long_model_is_not_computed_where_its_temporary_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("mine")
    with pytest.raises(FolderError, match=r"out\.partial is in the way"):
        check_inputs(ExtendConfig(base=GONE, output=str(tmp_path / "out"), recipe=ExtendRecipe(num_positions=64)))


@pytest.mark.parametrize("name", ["", "new", "new/deep", "link", "link/new", "../new"])
def test_a_folder_that_can_be_written_is_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "there").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("there")
    with exclusive_lock(tmp_path / "a" / name):
        assert (tmp_path / "a" / name / ".lock").is_file()
