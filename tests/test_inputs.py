"""What is checked before a stage starts: only what it still needs, with the errors that the stage itself raises."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import cli, inputs
from longmlm.config import resolved_pipeline
from longmlm.errors import DataError, ModelError, ModelNotFoundError
from longmlm.folders import write_json
from longmlm.inputs import check_inputs
from longmlm.model.loading import load_model
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, Start
from longmlm.training.run_folder import checkpoint_folder
from tests.support.rows import manifest_of

MINI = str(Path(cli.__file__).parent / "bundled" / "roberta-mini")


@pytest.fixture
def pretrain(tmp_path: Path) -> PretrainConfig:
    (tmp_path / "rows").mkdir()
    write_json(tmp_path / "rows" / "manifest.json", manifest_of(128))
    return PretrainConfig(
        rows=str(tmp_path / "rows"),
        run=str(tmp_path / "run"),
        start=Start(checkpoint=str(tmp_path / "gone")),
        recipe=PretrainRecipe(num_steps=1, batch_tokens=4096, learning_rate=1e-4),
    )


def pipeline(folder: Path, model: str, corpus: Path):
    base = {"model": model, "corpus": [str(corpus)], "length": 1024, "output": str(folder / "out")}
    return resolved_pipeline(base)


def test_a_run_that_resumes_does_not_need_the_model_that_it_started_from(pretrain: PretrainConfig) -> None:
    with pytest.raises(ModelNotFoundError, match="gone"):
        check_inputs(pretrain)
    check_inputs(replace(pretrain, start=Start(checkpoint=MINI)))
    checkpoint_folder(Path(pretrain.run), 1).mkdir(parents=True)
    check_inputs(pretrain)


def test_a_pipeline_needs_what_its_unfinished_stages_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "check_model", lambda name, _=None: checked.append(name))
    checked: list[str] = []
    corpus = tmp_path / "text.txt"
    config = pipeline(tmp_path, MINI, corpus)
    with pytest.raises(DataError, match="text.txt"):
        check_inputs(config)
    corpus.write_text("Some text.\n")
    check_inputs(config)
    assert set(checked) == {MINI}
    for stage in ("long", "rows", "evaluation"):
        (tmp_path / "out" / stage).mkdir(parents=True)
    corpus.unlink()
    checked.clear()
    check_inputs(config)
    assert checked == []


@pytest.mark.parametrize("output", ["mine", "./mine", "mine/"])
def test_what_a_stage_makes_need_not_exist_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("Some text.\n")
    base = {"model": MINI, "corpus": ["text.txt"], "length": 1024, "output": "out", "extend": {"output": output}}
    check_inputs(resolved_pipeline(base))


@pytest.mark.parametrize(("rank", "is_checked"), [(None, True), ("0", True), ("1", False)])
def test_one_process_of_a_machine_checks(
    pretrain: PretrainConfig, monkeypatch: pytest.MonkeyPatch, rank: str | None, is_checked: bool
) -> None:
    checked = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(cli, "parse", lambda *_: pretrain)
    monkeypatch.setattr(cli, "run", lambda *_: None)
    monkeypatch.setattr(inputs, "check_inputs", checked.append)
    monkeypatch.setattr("sys.argv", ["longmlm", "pretrain"])
    cli.main()
    assert checked == [pretrain] * is_checked


def test_a_folder_without_config_has_the_same_error_in_the_check_and_in_the_stage(
    tmp_path: Path, pretrain: PretrainConfig
) -> None:
    (tmp_path / "gone").mkdir()
    with pytest.raises(ModelError) as early:
        check_inputs(pretrain)
    with pytest.raises(ModelError) as late:
        load_model(str(tmp_path / "gone"))
    assert str(early.value) == str(late.value)
    assert "config.json" in str(late.value)
    (tmp_path / "gone" / "config.json").write_text(json.dumps({}))
    check_inputs(pretrain)
