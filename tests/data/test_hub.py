"""Data sets by name and in folders: the real client against a hub on this machine, commits pinned, errors in a line."""

import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SourceRecord, WorkPlan
from longmlm.data.corpus import Document, plan_slices, read_slice
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.folders import read_manifest
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.hub import Hub, serve
from tests.support.rows import rows_manifest

ROOT = Path(__file__).parents[2]
NAME = "owner/novels"
TEXTS = [f"It rained {number} times. She went out, and nobody saw her. " * 9 for number in range(60)]


def parquet(texts: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": range(len(texts)), "body": texts}), file)
    return file.getvalue()


FILES = {
    "README.md": b"---\nlicense: cc0-1.0\n---\n",
    "data/train-00000-of-00002.parquet": parquet(TEXTS[:40]),
    "data/train-00001-of-00002.parquet": parquet(TEXTS[40:]),
    "data/test-00000-of-00001.parquet": parquet(TEXTS[:3]),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as hub:
        hub.repository(f"datasets/{NAME}").commit(FILES)
        yield hub


@dataclasses.dataclass(frozen=True)
class Said:
    """How a run of the stage ended."""

    code: int
    error: str
    manifest: dict


def online(folder: Path, endpoint: str) -> dict[str, str]:
    """Returns the environment in which the client asks the hub at `endpoint`, with a cache of its own."""
    off = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), **off}


def prepare(folder: Path, endpoint: str, *overrides: str) -> Said:
    """Runs the stage as a user does, with a cache of its own, on a split of the data set on the hub."""
    settings = folder / "prepare.toml"
    settings.write_text(
        f'output = "{folder / "rows"}"\n[recipe]\ntokenizer = "assets/roberta-mini"\nrow_length = 64\n'
        f"held_out_fraction = 0.2\nslice_bytes = 9_000\n[[recipe.sources]]\n"
        f'dataset = "{NAME}"\nsplit = "train"\ntext_field = "body"\n'
    )
    command = [sys.executable, "-m", "longmlm", "prepare", str(settings), *overrides]
    environment = {**os.environ, **online(folder, endpoint)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith(("error:", "Traceback"))]
    rows = folder / "rows"
    return Said(done.returncode, "\n".join(errors), read_manifest(rows) if rows.exists() else {})


@pytest.mark.slow
def test_rows_of_a_split_are_made_at_a_commit_that_is_kept_when_the_branch_moves(hub: Hub, tmp_path: Path) -> None:
    repository = hub.repository(f"datasets/{NAME}")
    commit = repository.branches["main"]
    first = prepare(tmp_path, hub.endpoint)
    assert (first.code, first.error) == (0, "")
    (described,) = first.manifest["plan"]["sources"]
    assert (described["dataset"], described["commit"]) == (NAME, commit)
    report = first.manifest["report"]
    assert sum(report[split]["documents"] for split in ("train", "held_out")) == len(TEXTS)
    assert len(first.manifest["files"]) > 6

    repository.commit({**FILES, "data/train-00000-of-00002.parquet": parquet(["Another text."] * 40)})
    before = len(hub.requests)
    again = prepare(tmp_path, hub.endpoint)
    assert (again.code, again.manifest) == (0, first.manifest)
    assert not [request for request in hub.requests[before:] if NAME in request]

    revision = ("--recipe.sources.0.revision", commit)
    pinned = prepare(tmp_path, hub.endpoint, *revision, "--output", str(tmp_path / "pinned"))
    moved = prepare(tmp_path, hub.endpoint, "--output", str(tmp_path / "moved"))
    files = [read_manifest(tmp_path / name)["files"] for name in ("rows", "pinned", "moved")]
    assert (pinned.code, moved.code) == (0, 0)
    assert files[0] == files[1] != files[2]


@pytest.mark.slow
def test_a_killed_run_goes_on_at_its_commit_when_the_branch_has_moved(hub: Hub, tmp_path: Path) -> None:
    repository = hub.repository(f"datasets/{NAME}")
    commit = repository.branches["main"]
    partial = tmp_path / "rows.partial"
    partial.mkdir()
    source = SourceRecord(dataset=NAME, split="train", text_field="body", commit=commit)
    plan = dataclasses.replace(rows_manifest().plan, sources=(source,))
    artifact.write(partial / WorkPlan.FILE, WorkPlan(plan=plan, files=()))
    repository.commit({"data/train.parquet": parquet(["Another text."] * 40)})
    done = prepare(tmp_path, hub.endpoint)
    assert (done.code, done.error) == (0, "")
    assert done.manifest["plan"]["sources"][0]["commit"] == commit


ATTEMPTS = """
import json, sys
from longmlm.settings.prepare import Source
from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SourceRecord, WorkPlan
from longmlm.data.corpus import plan_slices
from longmlm.data.plan import pinned
from longmlm.errors import DataError

for each in json.loads(sys.argv[1]):
    try:
        print(plan_slices(pinned([Source(**each)], ()), 9_000))
    except DataError as error:
        print(error)
"""


def attempts(folder: Path, endpoint: str, sources: list[dict]) -> list[str]:
    """Returns what is said of each source by a process that has not met the hub before."""
    command = [sys.executable, "-c", ATTEMPTS, json.dumps(sources)]
    environment = {**os.environ, **online(folder, endpoint)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_the_hub_does_not_have_is_an_error_of_one_line_that_names_what_there_is(hub: Hub, tmp_path: Path) -> None:
    hub.repository("datasets/owner/scripted").commit({"scripted.py": b"raise SystemExit('it ran')"})
    usual = {"dataset": NAME, "split": "train", "text_field": "body"}
    messages = {
        f"'{NAME}'": {},
        "owner/none: no such folder nor data set of the hub": {"dataset": "owner/none"},
        f"{NAME} has no revision 'nope'": {"revision": "nope"},
        f"{'f' * 40}' doesn't exist": {"revision": "f" * 40},
        f"{NAME} has no split 'dev'; there are train, test": {"split": "dev"},
        "'long' not found. Available: ['default']": {"subset": "long"},
        "has no column 'text': name one in text_field; there are n, body": {"text_field": "text"},
        "scripts are no longer supported": {"dataset": "owner/scripted"},
    }
    said = attempts(tmp_path, hub.endpoint, [usual | changed for changed in messages.values()])
    assert said[0].startswith("[(Span(")
    assert len(said) == len(messages)
    assert [message for message, line in list(zip(messages, said, strict=True))[1:] if message not in line] == []


def test_a_hub_that_cannot_be_reached_is_an_error_of_one_line(tmp_path: Path) -> None:
    (said,) = attempts(tmp_path, "http://127.0.0.1:9", [{"dataset": NAME, "split": "train"}])
    assert said.startswith(f"{NAME}: the hub cannot be reached (")


@pytest.fixture(params=["files", "saved", "saved splits"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the folder of a data set: files of a usual layout, or what `datasets` saves."""
    folder, table = tmp_path / "local", Dataset.from_dict({"body": TEXTS})
    match request.param:
        case "files":
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "train-00000.jsonl").write_text(
                "".join(json.dumps({"body": text}) + "\n" for text in TEXTS), encoding="utf-8"
            )
        case "saved":
            table.save_to_disk(folder)
        case _:
            DatasetDict({"train": table, "test": table.select(range(3))}).save_to_disk(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_data_set_in_a_folder_is_read_in_slices(local: Path) -> None:
    sources = [Source(dataset=str(local), split="train", text_field="body")]
    slices = plan_slices(sources, 5_000)
    records = [record for spans in slices for record in read_slice(spans, sources)]
    assert [record.text for record in records if isinstance(record, Document)] == TEXTS
    assert len(slices) > 4
    if not (local / "state.json").exists():  # what Dataset.save_to_disk leaves may have no name of a split
        with pytest.raises(DataError, match="has no split 'dev'; there are"):
            plan_slices([dataclasses.replace(sources[0], split="dev")], 5_000)


def test_rows_of_a_folder_are_known_by_its_content(local: Path, vocabulary: Vocabulary, tmp_path: Path) -> None:
    source = Source(dataset=str(local), split="train", text_field="body")
    recipe = PrepareRecipe(tokenizer="tiny", row_length=64, sources=(source,), held_out_fraction=0.2)
    manifest = prepare_rows(recipe, vocabulary, tmp_path / "rows")
    (described,) = manifest.plan.sources
    assert {len(file.sha256) for file in described.files} == {64}
    assert described.commit is None
    assert prepare_rows(recipe, vocabulary, tmp_path / "rows") == manifest
    changed = next(
        path for path in local.rglob("*") if path.suffix in (".jsonl", ".arrow") and "test" not in path.parts
    )
    changed.write_bytes(changed.read_bytes() + b"\n")
    with pytest.raises(DataError, match="was made from other text"):
        prepare_rows(recipe, vocabulary, tmp_path / "rows")


def test_a_folder_that_holds_no_data_set_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read as a data set") as raised:
        plan_slices([Source(dataset=str(tmp_path / "empty"), split="train")], 5_000)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either at least one path in `files` or a `dataset`"),
        ({"files": ("a.txt",), "dataset": NAME, "split": "train"}, "either at least one path"),
        ({"dataset": NAME}, "needs the `split`"),
        ({"files": ("a.txt",), "revision": "main"}, "belong to a `dataset`"),
    ],
)
def test_a_source_is_files_or_a_split_of_a_data_set(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(**settings)
