"""Rows on disk: the smallest type that fits, memory-mapped, and nothing opened that is damaged or something else."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from longmlm.artifacts.rows import SPLITS
from longmlm.data.row import Row
from longmlm.data.rows import ROWS_PER_RECORD_BATCH, open_rows
from longmlm.errors import ArtifactError, DataError, FolderError, UserError
from longmlm.folders import MANIFEST, new_folder
from tests.support.rows import manifest_of, write_shard

ABOUT = manifest_of(row_length=9)


def row_of(*content: int) -> Row:
    ids = np.array([0, *content, 2], dtype=np.uint32)
    return Row(ids, np.array([1, 3], dtype=np.int32), np.array([1, 1], dtype=np.uint16))


def write_rows(folder: Path, shards: list[list[Row]], about: dict | None = None) -> None:
    counted = manifest_of(row_length=9, train=[row for rows in shards for row in rows])
    with new_folder(folder, counted if about is None else about) as partial:
        (partial / "train").mkdir()
        (partial / "held_out").mkdir()
        for number, rows in enumerate(shards):
            write_shard(partial / "train" / f"slice-{number:05d}.arrow", rows, 300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row_of(*range(10, 13 + number)) for number in range(5)]
    write_rows(tmp_path / "rows", [rows[:2], [], rows[2:]])
    return tmp_path / "rows"


@pytest.mark.parametrize(
    ("vocabulary_size", "id_type"), [(300, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (250_002, "uint32")]
)
def test_ids_take_the_smallest_type_that_holds_the_vocabulary(
    tmp_path: Path, vocabulary_size: int, id_type: str
) -> None:
    path, last = tmp_path / "slice.arrow", vocabulary_size - 1
    write_shard(path, [row_of(10, last), row_of(last)], vocabulary_size)
    table = Dataset.from_file(str(path))
    assert table.features["input_ids"].feature.dtype == id_type
    assert table["input_ids"][:] == [[0, 10, last, 2], [0, last, 2]]
    assert table["document_starts"][:] == [[1, 3]] * 2
    assert table["document_sources"][:] == [[1, 1]] * 2
    if id_type == "uint16":
        with pytest.raises(pa.ArrowInvalid, match="65536"):
            write_shard(tmp_path / "other.arrow", [row_of(65_536)], vocabulary_size)
        assert not (tmp_path / "other.arrow").exists()


def test_a_shard_of_several_record_batches_keeps_every_row(tmp_path: Path) -> None:
    num_rows = 2 * ROWS_PER_RECORD_BATCH + 3
    write_shard(tmp_path / "slice.arrow", (row_of(number) for number in range(num_rows)), 5_000)
    table = Dataset.from_file(str(tmp_path / "slice.arrow"))
    assert table["input_ids"][:] == [[0, number, 2] for number in range(num_rows)]


def test_a_shard_that_was_not_written_to_its_end_does_not_appear(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Row]:
        yield from (row_of(number) for number in range(ROWS_PER_RECORD_BATCH + 1))
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_shard(tmp_path / "slice.arrow", interrupted(), 5_000)
    assert not list(tmp_path.glob("*.arrow"))


def test_rows_are_those_of_all_shards_in_order(folder: Path) -> None:
    rows = open_rows(folder, "train")
    assert len(rows) == 5
    expected = [[0, *range(10, 13 + number), 2] for number in range(5)]
    assert [rows[row_id].input_ids.tolist() for row_id in range(5)] == expected
    assert rows[3].input_ids.dtype == np.int64
    assert (rows[1].document_starts.tolist(), rows[1].document_sources.tolist()) == ([1, 3], [1, 1])
    assert (rows.row_length, rows.mean_fill) == (9, (5 + 6 + 7 + 8 + 9) / 45)


def test_a_flipped_byte_is_found_and_its_file_named(folder: Path) -> None:
    shard = folder / "train" / "slice-00002.arrow"
    content = bytearray(shard.read_bytes())
    offset = content.index(np.arange(10, 14, dtype=np.uint16).tobytes())
    content[offset] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FolderError, match=f"{shard} is damaged"):
        open_rows(folder, "train")
    assert open_rows(folder, "train", verified=False)[2].input_ids.tolist()[1] == 11


def test_a_split_is_read_when_the_other_one_is_damaged(tmp_path: Path) -> None:
    rows = [row_of(10, 11, 12)]
    with new_folder(tmp_path / "rows", manifest_of(9, train=rows, held_out=rows)) as partial:
        for split in SPLITS:
            (partial / split).mkdir()
            write_shard(partial / split / "slice-00000.arrow", rows, 300)
    (tmp_path / "rows" / "train" / "slice-00000.arrow").write_bytes(b"damaged")
    assert len(open_rows(tmp_path / "rows", "held_out")) == 1
    with pytest.raises(FolderError, match="is damaged"):
        open_rows(tmp_path / "rows", "train")


def test_a_folder_that_holds_no_such_rows_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="no held_out rows"):
        open_rows(folder, "held_out")
    (folder / MANIFEST).unlink()
    for verified in (True, False):
        with pytest.raises(FolderError, match=f"{folder} has no {MANIFEST}.* name a folder that longmlm prepare wrote"):
            open_rows(folder, "train", verified)
    with pytest.raises(UserError, match="no such folder"):
        open_rows(folder / "absent", "train")


@pytest.mark.parametrize(
    ("about", "error", "message"),
    [
        ({}, DataError, "no packed rows"),
        ({"kind": "checkpoint", "format": 1}, DataError, "no packed rows"),
        ({**ABOUT, "format": 99}, ArtifactError, f"{MANIFEST} .*format .*99.*prepare the rows again"),
        ({**ABOUT, "report": {}}, ArtifactError, f"{MANIFEST} .*report"),
    ],
)
def test_a_folder_of_something_else_or_with_a_damaged_manifest_is_refused(
    tmp_path: Path, about: dict, error: type[UserError], message: str
) -> None:
    write_rows(tmp_path / "rows", [[row_of(10, 11, 12)]], about)
    with pytest.raises(error, match=message):
        open_rows(tmp_path / "rows", "train")
