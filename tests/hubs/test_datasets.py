"""Data sets on a hub, pinned to a commit, and in local folders; errors are one line."""

import dataclasses
import gzip
import hashlib
import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from longmlm.artifacts.rows import SourceRecord
from longmlm.data.corpus import Document, SetAside, plan_slices, read_slice
from longmlm.data.engine import prepare_rows
from longmlm.data.rows_plan import pinned, plan_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError
from longmlm.hubs.datasets import arrow_files, shards_of
from longmlm.hubs.storage import located
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.corpora import all_fields, contents, records_of
from tests.support.hub import Hub
from tests.support.loopback import CUT, Fault

NAME = "owner/novels"
TOKENIZER = Path(__file__).parents[2] / "src" / "longmlm" / "bundled" / "roberta-mini"
TEXTS = [f"It rained {number} times. She went out, and nobody saw her. " * 9 for number in range(60)]


def parquet(texts: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": range(len(texts)), "body": texts}), file)
    return file.getvalue()


CARD = b"---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  names: [text]\n  sep: '|'\n---\n"
FILES = {
    "README.md": b"---\nlicense: cc0-1.0\n---\n",
    "data/train-00000-of-00002.parquet": parquet(TEXTS[:40]),
    "data/train-00001-of-00002.parquet": parquet(TEXTS[40:]),
    "data/test-00000-of-00001.parquet": parquet(TEXTS[:3]),
}


@pytest.fixture(autouse=True)
def _own_settings(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives `datasets`, which reads the environment once, the hub and an empty cache."""
    hub.repository(f"datasets/{NAME}").commit(FILES)
    settings = {"HF_DATASETS_CACHE": tmp_path / "cache", "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False}
    for name, value in settings.items():
        monkeypatch.setattr(f"datasets.config.{name}", value)


def slices(**changed: str) -> list:
    """Returns the slices of a split on the hub."""
    source = Source(**{"dataset": NAME, "split": "train", "text_field": "body"} | changed)
    return plan_slices([pinned(source)], 9_000)


def test_split_is_read_at_the_commit_that_the_earlier_plan_pinned(hub: Hub) -> None:
    repository = hub.repository(f"datasets/{NAME}")
    source = Source(dataset=NAME, split="train", text_field="body")
    first = pinned(source)
    assert first.revision == repository.branches["main"]
    repository.commit({**FILES, "data/train-00000-of-00002.parquet": parquet(["Another text."] * 40)})
    record = SourceRecord(dataset=NAME, split="train", text_field="body", commit=first.revision)
    kept = pinned(source, [record])
    moved = pinned(source)
    assert kept == first != moved
    texts = [record.text for spans in plan_slices([kept], 9_000) for record in read_slice(spans, [kept])]
    assert texts == TEXTS
    asked = len(hub.requests)
    assert pinned(kept) == kept
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dataset": "owner/none"}, ["owner/none"]),
        ({"revision": "nope"}, [NAME, "'nope'"]),
        ({"revision": "f" * 40}, [NAME, "f" * 40]),
        ({"split": "dev"}, [NAME, "'dev'", "train, test"]),
        ({"subset": "long"}, [NAME, "'long'"]),
        ({"text_field": "text"}, ["'text'", "'n', 'body'"]),
        ({"dataset": "owner/scripted"}, ["owner/scripted"]),
    ],
)
def test_what_the_hub_does_not_have_is_named_in_one_line(hub: Hub, changed: dict[str, str], named: list[str]) -> None:
    hub.repository("datasets/owner/scripted").commit({"scripted.py": b"raise SystemExit('it ran')"})
    with pytest.raises(DataError) as caught:
        slices(**changed)
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in named if part not in line] == []


def test_fault_while_a_split_is_downloaded_is_retried(hub: Hub) -> None:
    hub.faults = [
        Fault(r"GET /datasets/.*\.parquet", status, first=first) for first, status in enumerate((503, CUT), 1)
    ]
    assert len(slices()) > 1
    hub.faults = [Fault("GET", 503, times=10**6)]
    with pytest.raises(DataError, match=r"owner/other.*503"):
        slices(dataset="owner/other")


@pytest.fixture(params=["files", "saved", "saved splits"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the folder of a dataset: files of a usual layout, or what `datasets` saves."""
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


def test_data_set_in_a_folder_is_read_in_slices(local: Path) -> None:
    sources = [Source(dataset=str(local), split="train", text_field="body")]
    slices = plan_slices(sources, 5_000)
    records = [record for spans in slices for record in read_slice(spans, sources)]
    assert [record.text for record in records if isinstance(record, Document)] == TEXTS
    assert len(slices) > 4
    if not (local / "state.json").exists():  # Dataset.save_to_disk may not name the split
        with pytest.raises(DataError, match="'dev'.*train"):
            plan_slices([dataclasses.replace(sources[0], split="dev")], 5_000)


def test_rows_of_a_folder_depend_on_its_content(local: Path, tmp_path: Path) -> None:
    vocabulary = load_vocabulary(str(TOKENIZER))
    source = Source(dataset=str(local), split="train", text_field="body")
    recipe = PrepareRecipe(tokenizer=str(TOKENIZER), row_length=64, sources=(source,), held_out_fraction=0.2)
    manifest = prepare_rows(recipe, vocabulary, tmp_path / "rows")
    (record,) = manifest.plan.sources
    assert {len(file.sha256) for file in record.files} == {64}
    assert record.commit is None
    assert prepare_rows(recipe, vocabulary, tmp_path / "rows") == manifest
    changed = next(
        path for path in local.rglob("*") if path.suffix in (".jsonl", ".arrow") and "test" not in path.parts
    )
    changed.write_bytes(changed.read_bytes() + b"\n")
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "rows"))):
        prepare_rows(recipe, vocabulary, tmp_path / "rows")


def test_what_is_set_aside_of_a_dataset_names_its_file_and_the_record(hub: Hub) -> None:
    texts = [[*TEXTS[:3], "", *TEXTS[4:40]], [*TEXTS[:9], None, *TEXTS[10:]]]
    names = [f"train-0000{part}-of-00002.parquet" for part in range(2)]
    commit = hub.repository("datasets/owner/gaps").commit(
        {"README.md": b"", **{name: parquet(part) for name, part in zip(names, texts, strict=True)}}
    )
    source = Source(dataset="owner/gaps", revision=commit, split="train", text_field="body")
    records = [record for spans in plan_slices([source], 3_000) for record in read_slice(spans, [source])]
    assert [record.origin for record in records] == [
        f"hf://datasets/owner/gaps@{commit}/{name}:{number}"
        for name, part in zip(names, texts, strict=True)
        for number in range(len(part))
    ]
    assert [number for number, record in enumerate(records) if isinstance(record, SetAside)] == [3, 49]
    with pytest.raises(DataError, match="owner/gaps.*'text'.*text_field.*'n', 'body'"):
        plan_slices([dataclasses.replace(source, text_field="text")], 3_000)


def test_a_file_of_the_hub_is_known_by_the_hash_that_the_hub_tells(hub: Hub) -> None:
    source = Source(files=(f"hf://datasets/{NAME}/data/train-*.parquet",), text_field="body")
    recipe = PrepareRecipe(tokenizer=str(TOKENIZER), row_length=64, sources=(source,))
    hub.sent.clear()
    planned = plan_rows(recipe, "fingerprint")
    expected = [hashlib.sha256(content).hexdigest() for name, content in FILES.items() if "train" in name]
    assert [file.sha256 for file in planned.plan.files] == expected
    assert hub.sent == []
    assert contents(records_of(sources=[source])) == TEXTS


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"body": text}) + "\n" for text in texts).encode()


SHARDS = {
    "jsonl": lines,
    "jsonl.gz": lambda texts: gzip.compress(lines(texts)),
    "json": lambda texts: json.dumps([{"body": text} for text in texts]).encode(),
    "tsv": lambda texts: "\n".join(["n\tbody", *(f"1\t{text}" for text in texts)]).encode(),
    "parquet": parquet,
}


@pytest.mark.parametrize("ending", SHARDS)
def test_a_slice_is_read_from_its_own_shard_alone_and_planned_without_it(hub: Hub, ending: str) -> None:
    names = [f"train-0000{part}-of-00003.{ending}" for part in range(3)]
    content = {name: SHARDS[ending](TEXTS[part:12:3]) for part, name in enumerate(names)}
    commit = hub.repository("datasets/owner/shards").commit({"README.md": b"", **content})
    sources = [Source(dataset="owner/shards", revision=commit, split="train", text_field="body")]
    assert [located(name).stat().st_size for name in shards_of(sources[0])] == [*map(len, content.values())]
    hub.sent.clear()
    slices = plan_slices(sources, 300)
    is_read = ending in ("jsonl", "parquet")  # its beginning, or the number of its records at its end
    assert {path.rpartition("/")[2] for path, *_ in hub.sent} == ({*names} if is_read else set())
    assert len(slices) == 3 if ending in ("jsonl.gz", "json", "tsv") else len(slices) >= 12
    for spans in reversed(slices):  # in a short one of a file of lines no record begins
        hub.sent.clear()
        if last := [record.text for record in read_slice(spans, sources) if isinstance(record, Document)]:
            break
    assert set(last) <= {*TEXTS[2:12:3]} and last
    assert {path.rpartition("/")[2] for path, *_ in hub.sent} == {names[2]}
    texts = [record.text for spans in slices for record in read_slice(spans, sources)]
    assert texts == [text for part in range(3) for text in TEXTS[part:12:3]]


@pytest.mark.parametrize(
    "files",
    [
        {"train.txt": "\n".join(TEXTS).encode()},
        {"train.csv": "\n".join(TEXTS).encode(), "README.md": CARD},
    ],
)
def test_a_format_or_an_option_that_only_datasets_reads_is_converted(hub: Hub, files: dict[str, bytes]) -> None:
    commit = hub.repository("datasets/owner/lines").commit({"README.md": b"", **files})
    source = Source(dataset="owner/lines", revision=commit, split="train")
    assert shards_of(source, may_convert=False) == []
    (spans,) = plan_slices([source], 1 << 40)
    assert [record.text for record in read_slice(spans, [source]) if isinstance(record, Document)] == TEXTS


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("datasets.config", "huggingface_hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)


def test_texts_of_csv_files_are_never_taken_for_missing_ones(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.repository("datasets/owner/table").commit({"train.csv": b"body,n\nnull,1\nNA,\ncalm,2\n"})
    source = Source(dataset="owner/table", revision=commit, split="train", text_field="body")
    (spans,) = plan_slices([source], 9_000)
    texts = [record.text for record in read_slice(spans, [source]) if isinstance(record, Document)]
    assert texts == ["null", "NA", "calm"]
    for is_offline in (False, True):  # in the copy, too, which is read where the hub cannot be reached
        go_offline(monkeypatch) if is_offline else None
        assert [fields["body"] for fields in all_fields(source)] == texts


def test_a_converted_copy_gives_no_rows_in_place_of_files_that_are_out_of_reach(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, recipes = load_vocabulary(str(TOKENIZER)), {}
    for name, files in ((NAME, FILES), ("owner/lines", {"README.md": b"", "train.txt": "\n".join(TEXTS).encode()})):
        commit = hub.repository(f"datasets/{name}").commit(files)
        source = Source(dataset=name, revision=commit, split="train", text_field="body" if name == NAME else "text")
        recipe = PrepareRecipe(tokenizer=str(TOKENIZER), row_length=64, sources=(source,), held_out_fraction=0.2)
        recipes[name] = recipe, prepare_rows(recipe, vocabulary, tmp_path / name)
        arrow_files(source)
    go_offline(monkeypatch)
    recipe, made = recipes[NAME]
    assert prepare_rows(recipe, vocabulary, tmp_path / NAME) == made
    with pytest.raises(DataError, match=f"^{NAME}: its files cannot be read from the hub now, .* name a folder that"):
        prepare_rows(recipe, vocabulary, tmp_path / "again")
    recipe, made = recipes["owner/lines"]  # which is always converted
    assert prepare_rows(recipe, vocabulary, tmp_path / "lines").sha256 == made.sha256


def test_folder_without_a_data_set_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=str(tmp_path / "empty")) as caught:
        plan_slices([Source(dataset=str(tmp_path / "empty"), split="train")], 5_000)
    assert "\n" not in str(caught.value)
