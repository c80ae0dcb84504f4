"""Settings of the downstream command: nested tables, tables of arms, lists of numbers, and what is refused."""

from pathlib import Path

import pytest

from longmlm.artifacts.artifact import to_toml
from longmlm.config import parse, read
from longmlm.downstream.command import check_inputs
from longmlm.downstream.settings import Arm, DownstreamConfig
from longmlm.errors import ConfigError, DataError, FolderError, ModelError
from longmlm.settings.shipped import PACKAGE
from tests.support.prepare_settings import written

TASK = """
output = "out"
[task]
kind = "classification"
data.files = ["docs.jsonl"]
[arms.512]
model = "bundled:roberta-mini"
length = 64
[arms.1024]
[recipe]
learning_rate = [1e-5, 2e-5]
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, "task.toml", TASK)


def parsed(*arguments: str) -> DownstreamConfig:
    return parse(DownstreamConfig, arguments)


def test_arms_have_names_of_the_users_and_inherit_nothing(task: str) -> None:
    config = parsed(task)
    mini = str(PACKAGE / "bundled" / "roberta-mini")
    assert config.arms == {"512": Arm(model=mini, length=64), "1024": Arm()}
    assert config.reference == "512"


def test_options_override_settings_of_all_depths(task: str) -> None:
    options = ("--task.data.text-field", "body", "--recipe.learning-rate", "1e-4", "3e-4", "--baseline", "1024")
    config = parsed(task, *options, "--recipe.seeds", "1", "2", "--keep-weights")
    assert (config.task.data.text_field, config.task.data.files) == ("body", ("docs.jsonl",))
    assert (config.recipe.learning_rate, config.recipe.seeds) == ((1e-4, 3e-4), (1, 2))
    assert (config.reference, config.keep_weights) == ("1024", True)


def test_settings_are_written_and_read_back(task: str, tmp_path: Path) -> None:
    config = parsed(task)
    assert read(DownstreamConfig, [Path(written(tmp_path, "again.toml", to_toml(config)))]) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms.512.lenght = 5", r"unknown key arms\.512\.lenght, did you mean length\?"),
        ("arms.512.label_field = 'a'", r"unknown key arms\.512\.label_field, did you mean task\.data\.label_field\?"),
        ("reads = 'last'", r"unknown key reads, did you mean arms\.NAME\.reads\?"),
        ("recipe.learning_rate = 1e-5", r"recipe\.learning_rate: a list is needed, as in \[1e-05\]"),
        ("recipe.num_epochs = [0]", r"recipe\.num_epochs\.0 must be at least 1, not 0"),
        (
            "recipe.learning_rate = [2e-5, 0.00002]",
            "recipe: learning_rate must be different numbers: 2e-05 is repeated",
        ),
        ("recipe.num_epochs = []", r"recipe\.num_epochs needs at least 1 value"),
        ("recipe.learning_rate = [0.0]", r"recipe\.learning_rate\.0 must be above 0, not 0\.0"),
        ("recipe.patience = 0", r"recipe\.patience must be at least 1, not 0"),
        ("arms.1024.reads = 'last'", r"arms\.1024: frozen, revision and reads need a model"),
        ("arms.512.pooling = 'cnn'", r"arms\.512: pooling = cnn needs reads = chunks"),
        ("baseline = '2048'", "baseline = 2048: there is no such arm, only 512, 1024"),
        ("arms.'a b'.length = 64", "arm 'a b': a name may contain only letters, digits"),
        ("task.data.dataset = 'owner/name'", r"task\.data: set either `files`"),
        ("task.kind = 'labelling'", "arms.1024 has no model, but labelling trains a model in every arm"),
    ],
)
def test_mistakes_are_named_with_file_and_key(task: str, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"task\.toml \+ .*wrong\.toml: .*{message}"):
        parsed(task, written(tmp_path, "wrong.toml", text))


def test_required_settings_of_nested_tables_are_named() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed("--output", "out")
    assert "--task.kind is missing; task.data: set either `files`" in str(raised.value)


def test_inputs_are_checked_before_anything_runs(task: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"docs\.jsonl: no such file"):
        check_inputs(parsed(task))
    (tmp_path / "docs.jsonl").write_text('{"text": "a", "label": "b"}\n', encoding="utf-8")
    check_inputs(parsed(task))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty has no config\.json"):
        check_inputs(parsed(task, written(tmp_path, "model.toml", 'arms.other.model = "empty"')))
    (tmp_path / "out").touch()
    with pytest.raises(FolderError, match="out is a file: remove it or name another output"):
        check_inputs(parsed(task))


def test_an_output_inside_the_dataset_is_refused(task: str, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    dataset = written(
        tmp_path, "dataset.toml", '[task]\nkind = "classification"\ndata.dataset = "texts"\n[arms.tfidf]\n'
    )
    with pytest.raises(DataError, match="./texts is inside the dataset texts"):
        check_inputs(parsed(dataset, "--output", "./texts"))


def test_paths_start_from_the_home_folder(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = parsed(task, "--task.data.dev-files", "~/dev.jsonl", "--output", "~/other")
    assert config.task.data.dev_files == (f"{tmp_path}/dev.jsonl",) and config.output == f"{tmp_path}/other"
