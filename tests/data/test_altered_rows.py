"""Rows of another maker: hashes agree with the manifest, but what the shards hold does not."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, RowsManifest, Split
from longmlm.data.row import Row, SpecialTokens
from longmlm.data.rows import open_rows
from longmlm.errors import DataError, UserError
from longmlm.folders import entry_of, new_folder
from longmlm.release.dataset import Publication, write_dataset
from longmlm.settings.prepare import RowsCard
from tests.support.rows import manifest_of, write_shard

SPECIAL = SpecialTokens(cls=0, sep=2, mask=4, pad=1, unk=3, all=(0, 1, 2, 3, 4))
SIZE = 300
Edit = Callable[[list[Any]], list[Any]]


def row_of(number: int, source: int) -> Row:
    ids = np.array([0, *range(10, 14 + number % 3), 2], dtype=np.uint32)
    return Row(ids, np.array([1, 3], dtype=np.int32), np.full(2, source, dtype=np.uint16))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "rows"
    rows = [row_of(number, int(number >= 8)) for number in range(12)]
    with new_folder(folder, manifest_of(9, train=rows, held_out=rows)) as partial:
        for split in SPLITS:
            (partial / split).mkdir()
            write_shard(partial / split / "slice-00000.arrow", rows[:5], SIZE)
            write_shard(partial / split / "slice-00001.arrow", rows[5:], SIZE)
    return folder


def checked(folder: Path, split: Split) -> None:
    open_rows(folder, split).check_tokens(SIZE, SPECIAL)


def altered(sound: Path, folder: Path, split: Split, change: Callable[[pa.Table], pa.Table] | bytes) -> Path:
    """Writes rows whose second shard of a split is changed, with its hash in the manifest."""
    shutil.copytree(sound, folder)
    path = folder / split / "slice-00001.arrow"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        table = change(pa.ipc.open_stream(path.read_bytes()).read_all())
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    manifest = json.loads((folder / RowsManifest.FILE).read_text())
    manifest["files"][f"{split}/{path.name}"] = asdict(entry_of(path))
    (folder / RowsManifest.FILE).write_text(json.dumps(manifest))
    return folder


def column(name: str, edit: Edit, kind: pa.DataType | None = None, row: int = 2) -> Callable[[pa.Table], pa.Table]:
    """Returns the change of a value of a column, and of the type of the column."""

    def change(table: pa.Table) -> pa.Table:
        number, values = table.schema.names.index(name), table.column(name).to_pylist()
        values[row] = edit(values[row])
        return table.set_column(number, name, pa.array(values, kind or table.schema.field(name).type))

    return change


def ids(edit: Edit, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    return column("input_ids", edit, kind)


def same(values: list[Any]) -> list[Any]:
    return values


SHARD = r"slice-00001\.arrow: "
KINDS = "input_ids of lists of uint16 or uint32"
CHANGES: dict[str, tuple[Callable[[pa.Table], pa.Table] | bytes, str]] = {
    "an id outside of the vocabulary": (ids(lambda row: [0, SIZE, *row[2:]]), "row 7 has a token outside"),
    "a large id": (ids(lambda row: [0, 60_000, *row[2:]]), "row 7 has a token outside"),
    "another first token": (ids(lambda row: [9, *row[1:]]), "row 7 .*special token"),
    "another last token": (ids(lambda row: [*row[:-1], 9]), "row 7 .*special token"),
    "signed ids": (ids(lambda row: [0, -5, *row[2:]], pa.list_(pa.int32())), f"{SHARD}it has no column {KINDS}"),
    "large ids": (ids(same, pa.list_(pa.int64())), KINDS),
    "large lists": (ids(same, pa.large_list(pa.uint16())), KINDS),
    "real numbers": (ids(same, pa.list_(pa.float32())), KINDS),
    "an empty row": (ids(lambda _: []), f"{SHARD}row 2 does not have 3 to 9 tokens"),
    "a row of special tokens": (ids(lambda _: [0, 2]), f"{SHARD}row 2 does not have 3 to 9 tokens"),
    "a row that is too long": (ids(lambda row: [*row[:-1], *range(10, 14), 2]), f"{SHARD}row 2 does not have"),
    "a row of one more token": (ids(lambda row: [*row[:-1], 9, 2]), "train.tokens is 48, but its shards have 49"),
    "no row": (ids(lambda _: None), f"{SHARD}row 2 has null in input_ids"),
    "no token": (ids(lambda row: [0, None, *row[2:]]), f"{SHARD}row 2 has null in input_ids"),
    "no column": (lambda table: table.drop_columns(["input_ids"]), KINDS),
    "no starts": (lambda table: table.drop_columns(["document_starts"]), "document_starts of lists of int32"),
    "no sources": (lambda table: table.drop_columns(["document_sources"]), "document_sources of lists of uint16"),
    "a column twice": (lambda table: table.append_column("input_ids", table.column("input_ids")), KINDS),
    "no start": (column("document_starts", lambda _: []), "as many document_sources"),
    "a start beyond the row": (column("document_starts", lambda _: [1, 90]), f"{SHARD}row 2 has document_starts"),
    "a start at the end": (column("document_starts", lambda _: [1, 6]), f"{SHARD}row 2 has document_starts"),
    "falling starts": (column("document_starts", lambda _: [3, 1]), f"{SHARD}row 2 has document_starts"),
    "starts below 0": (column("document_starts", lambda _: [-3, 3]), f"{SHARD}row 2 has document_starts"),
    "no such source": (column("document_sources", lambda _: [99, 99]), f"{SHARD}row 2 is of a source"),
    "another source": (column("document_sources", lambda _: [1, 1]), r"rows_per_source is \(8, 4\)"),
    "rows in another order": (lambda table: table.take([*range(7)][::-1]), "do not follow each other"),
    "a row less": (lambda table: table.slice(1), "train.rows is 12, but its shards have 11"),
    "no rows": (lambda table: table.slice(0, 0), "train.rows is 12, but its shards have 5"),
    "a row twice": (lambda table: pa.concat_tables([table, table.slice(6)]), "train.rows is 12, but its .* 13"),
    "text": (b"hello", SHARD),
    "an empty file": (b"", SHARD),
}


@pytest.mark.parametrize("name", CHANGES)
def test_altered_shards_are_refused_with_the_shard_and_the_row(sound: Path, tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    for split in SPLITS:
        folder = altered(sound, tmp_path / split, split, change)
        with pytest.raises(DataError, match=message.replace("train.", rf"{split}\.")) as raised:
            checked(folder, split)
        assert "prepare them again" in str(raised.value) and "\n" not in str(raised.value)
        checked(folder, next(other for other in SPLITS if other != split))


COUNTS: dict[str, Any] = {
    "rows_per_source": [[1, 1], [4, 8], []],
    "tokens_per_source": [[0, 0], [12, 24], [36], []],
    "unknown_per_source": [[], [0, 0, 0]],
    "fill_rate": [0.0, 3.0, 0.5, None],
    "rows": [0, 7],
    "tokens": [0, 47, 1_000],
    "separators": [0, 13],
    "documents": [0],
    "document_lengths": [[], [0, 0, 0, 0, 0, 12]],
    "fills": [[], [0] * 20],
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_manifest_with_other_counts_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(sound, tmp_path / "rows")
    path = tmp_path / "rows" / RowsManifest.FILE
    for value in COUNTS[name]:
        manifest = json.loads((sound / RowsManifest.FILE).read_text())
        assert manifest["report"]["train"][name] != value
        manifest["report"]["train"][name] = value
        path.write_text(json.dumps(manifest))
        with pytest.raises(UserError, match=RowsManifest.FILE) as raised:
            checked(tmp_path / "rows", "train")
        assert "\n" not in str(raised.value)


def test_sound_rows_are_read_and_further_columns_are_left_out(sound: Path, tmp_path: Path) -> None:
    more = altered(sound, tmp_path / "more", "train", lambda table: table.append_column("x", pa.array(range(7))))
    for folder in (sound, more):
        for split in SPLITS:
            checked(folder, split)
    assert open_rows(more, "train").table.column_names == ["input_ids", "document_starts", "document_sources"]
    assert artifact.read(RowsManifest, sound / RowsManifest.FILE).sources("train") == {
        "source-1": (8, 31),
        "source-2": (4, 17),
    }


def test_altered_rows_are_not_published(sound: Path, tmp_path: Path) -> None:
    folder = altered(sound, tmp_path / "rows", "held_out", ids(lambda _: []))
    (tmp_path / "public").mkdir()
    with pytest.raises(DataError, match="row 2 does not have"):
        write_dataset(folder, Publication("tiny", RowsCard(license="mit")), tmp_path / "public")
