"""A result that does not exist yet is answered with the command that makes it, whichever command needs it."""

from pathlib import Path

import pytest

from longmlm.config import parse
from longmlm.errors import UserError
from longmlm.folders import write_json
from longmlm.inputs import check_inputs
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.stages.checkpoints import checkpoints
from longmlm.stages.prepare import prepare
from tests.support.rows import FILES, manifest_of
from tests.support.tiny import LONG_POSITIONS, tiny_folder

PIPELINE = """
model = "base"
corpus = ["text.jsonl"]
length = 40
output = "out"
[release.card]
license = "mit"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "base")
    (tmp_path / "mine.toml").write_text(PIPELINE, encoding="utf-8")
    return "mine.toml"


def make_rows() -> None:
    """Writes as much of the rows as is read before a stage starts."""
    Path("out/rows").mkdir(parents=True)
    write_json(Path("out/rows/manifest.json"), {**manifest_of(LONG_POSITIONS), "files": FILES})


@pytest.mark.parametrize("kind", [PretrainConfig, ReleaseConfig])
def test_rows_that_are_missing(kind: type, mine: str) -> None:
    for name in ("out/long", "out/run"):
        tiny_folder(Path(name))
    with pytest.raises(UserError, match=r"^out/rows: no such folder: run longmlm prepare first"):
        check_inputs(parse(kind, [mine]))


@pytest.mark.parametrize("kind", [EvaluateConfig, ReleaseConfig, CheckpointsConfig])
def test_a_run_that_is_missing(kind: type, mine: str) -> None:
    make_rows()
    tiny_folder(Path("out/long"))
    config = parse(kind, [mine])
    with pytest.raises(UserError, match=r"^out/run: no such folder: run longmlm pretrain first"):
        checkpoints(config) if isinstance(config, CheckpointsConfig) else check_inputs(config)


@pytest.mark.parametrize("kind", [PrepareConfig, PretrainConfig, EvaluateConfig])
def test_a_long_model_that_is_missing_is_not_looked_for_on_a_hub(kind: type, mine: str) -> None:
    options = ["--recipe.tokenizer", "out/long"] if kind is PrepareConfig else []  # as add_tokens sets it
    Path("out").mkdir() if kind is PrepareConfig else make_rows()
    with pytest.raises(UserError, match=r"^out/long: no such folder in out: check its path, or run the stage"):
        check_inputs(parse(kind, [mine, *options]))


@pytest.mark.parametrize("name", ["text.jsonl", "text.csv"])
def test_a_text_field_that_is_missing_lists_those_that_there_are(name: str, mine: str) -> None:
    lines = {"text.jsonl": '{"id": 1, "body": "A text."}\n' * 2, "text.csv": "id,body\n1,A text.\n2,Another.\n"}
    Path(name).write_text(lines[name], encoding="utf-8")
    with pytest.raises(UserError, match=r"set text_field to one of '?id'?, '?body'?(;|$)"):
        prepare(parse(PrepareConfig, [mine, "--corpus", name]))
