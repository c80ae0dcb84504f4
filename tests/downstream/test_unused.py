"""Settings of the downstream command that have no effect beside others are refused, with what to remove."""

import tomllib
from functools import reduce
from pathlib import Path

import pytest
import tomli_w

from longmlm.config import parse
from longmlm.downstream.command import check_inputs
from longmlm.downstream.settings import DownstreamConfig
from longmlm.errors import UserError
from longmlm.settings.tables import Table, merged, with_arrays
from tests.support.prepare_settings import written

BASE = (
    'output = "out"\ntask = {kind = "classification", data.files = ["a.csv"]}\narms = {a = {model = "m"}, words = {}}\n'
)
DATASET = 'task.data = {files = "-", dataset = "owner/name"}'
LABELLING = 'task.kind = "labelling"\narms.words = "-"'
TAGS = 'task = {kind = "labelling", data.tags_field = "tags"}\narms.words = "-"'
FROZEN, TFIDF = "arms.a.frozen = true", 'arms.a.model = "-"'
TRACKED = 'tracking.tracker = "wandb"'
# A setting, where it is refused, what the line names, and where it is accepted (None: nowhere).
CASES = (
    ('task.data.train_split = "t"', "", "dataset", DATASET),
    ('task.data.dev_split = "t"', "", "dataset", DATASET),
    ('task.data.dev_files = ["a.csv"]', DATASET, "files"),
    ('task.data.delimiter = ";"', DATASET, "files"),
    ('task.data.delimiter = ";"', 'task.data.files = ["a.jsonl"]', "files"),
    ('task.data.quoting = "none"', 'task.data.files = ["a.jsonl"]', "files"),
    ('task.data.spans_field = "s"', "", "kind", LABELLING),
    ('task.data.span_unit = "words"', TAGS, "tags_field", LABELLING),
    ('task.data.label_field = "l"', LABELLING, "kind"),
    ('task.data.tags_field = "t"', "", "kind", LABELLING),
    ('task.data.split_field = "s"', 'task.data.test_files = ["a.csv"]', "test_files"),
    ("task.num_folds = 3", 'task.data.split_field = "s"', "split_field"),
    ("task.dev_fraction = 0.3", 'task.data.dev_files = ["a.csv"]', "dev_files"),
    ("task.test_fraction = 0.3", "task.num_folds = 3", "num_folds"),
    ("task.test_fraction = 0.3", 'task.data.split_field = "s"', "split_field"),
    ("arms.words.frozen = true", "", "model", None),
    ("recipe.frozen_learning_rate = [1]", "", "frozen", FROZEN),
    ("recipe.learning_rate = [1]", FROZEN, "frozen"),
    ("recipe.documents_per_step = 3", TFIDF, "model"),
    ("runtime.num_threads = 1", TFIDF, "model"),
    ('tracking.tracker = "wandb"', TFIDF, "model"),
    ("keep_weights = true", TFIDF, "model"),
    ('tracking.project = "p"', "", "tracker", TRACKED),
)


def refusal(folder: Path, setting: str, where: str) -> str:
    """Returns the line in which the settings are refused; empty if they are not."""
    tables = reduce(merged, map(tomllib.loads, (BASE, where, setting)))
    try:
        check_inputs(parse(DownstreamConfig, [written(folder, "own.toml", tomli_w.dumps(given(tables)))]))
    except UserError as error:
        return str(error)
    return ""


def given(tables: Table) -> Table:
    """Returns the tables without the settings that are removed."""
    kept = {key: value for key, value in tables.items() if value != "-"}
    return {key: given(value) if isinstance(value, dict) else value for key, value in with_arrays(kept).items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def test_a_setting_without_effect_is_refused_and_accepted_where_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\nx,a\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "a"}\n', encoding="utf-8")
    setting, where, named, *accepted = case
    name = setting.partition(" = ")[0].rpartition(".")[2]
    line = refusal(tmp_path, setting, where)
    assert name in line and named in line and "\n" not in line
    if accepted != [None]:
        assert name not in refusal(tmp_path, setting, accepted[0] if accepted else "") or name == "revision"


def test_a_default_that_is_written_out_is_not_refused(tmp_path: Path) -> None:
    for setting in ('task.data.train_split = "train"', "recipe.frozen_num_epochs = [30]", "task.test_fraction = 0.2"):
        assert "no effect" not in refusal(tmp_path, setting, "task.num_folds = 3")
