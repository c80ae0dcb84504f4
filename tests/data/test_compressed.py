"""Compressed files: all parts are read, whatever the settings of the compressor, and damaged ones are named."""

import gzip
import os
import zlib
from pathlib import Path

import pytest

from longmlm.data.files import Span, count_bytes, lines_of
from longmlm.errors import DataError
from tests.support.corpora import compressed, json_lines, records_of, texts_of

TEXTS = ["The lake was calm.", "湖水像一面镜子。", "Ærlig talt — 😀", "line one\nline two"]


def test_files_compressed_in_several_parts_are_read_to_their_end(tmp_path: Path) -> None:
    whole, parts = json_lines(TEXTS * 50), [json_lines([text]) for text in TEXTS * 50]
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    (tmp_path / "parts.jsonl.gz").write_bytes(b"".join(map(gzip.compress, parts)))
    (tmp_path / "parts.jsonl.zst").write_bytes(skippable + b"".join(compressed(part, ".zst") for part in parts))
    for ending in (".bz2", ".xz"):
        (tmp_path / f"parts.jsonl{ending}").write_bytes(b"".join(compressed(part, ending) for part in parts))
    for name in ("parts.jsonl.gz", "parts.jsonl.bz2", "parts.jsonl.xz", "parts.jsonl.zst"):
        assert texts_of(tmp_path / name) == TEXTS * 50
        assert count_bytes(tmp_path / name) == len(whole)


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_lines_are_read_from_any_offset(tmp_path: Path, ending: str) -> None:
    path, content = tmp_path / f"lines.jsonl{ending}", os.urandom(3_000_000) + b"\n"
    path.write_bytes(compressed(content, ending) if ending else content)
    for offset in (1, 1 << 20, (1 << 20) + 1, 2_999_999):
        with lines_of(Span(str(path), offset, len(content), 0, 0)) as lines:
            assert b"".join(iter(lines.read, b"")) == content[content.index(b"\n", offset - 1) + 1 :]


@pytest.mark.parametrize("window_log", [10, 27, 31])
def test_a_zst_file_is_read_whatever_the_window_of_its_frames(tmp_path: Path, window_log: int) -> None:
    path, content = tmp_path / "long.jsonl.zst", json_lines(TEXTS)
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content  # the last one of its frame, not compressed
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([window_log - 10 << 3]) + block  # RFC 8878, 3.1.1
    path.write_bytes(frame + compressed(content, ".zst") + frame)
    assert texts_of(path) == TEXTS * 3
    assert count_bytes(path) == 3 * len(content)
    for damaged in (frame[:-1], frame + frame[:9], frame + b"garbage"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            records_of(path)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_short_is_an_error_that_names_it(tmp_path: Path, ending: str) -> None:
    whole = compressed(json_lines([os.urandom(40).hex() for _ in range(3_000)]), ending)
    path = tmp_path / f"cut.jsonl{ending}"
    for share in (0.02, 0.5, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=f"{path} is damaged"):
            records_of(path)


def test_a_compressed_file_with_damaged_content_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = gzip.compress(json_lines(TEXTS * 9))
    invalid_block = whole[:10] + b"\x07" + whole[11:]
    with pytest.raises(zlib.error):
        gzip.decompress(invalid_block)
    contents = {"block.jsonl.gz": invalid_block, "no.jsonl.gz": json_lines(TEXTS), "no.jsonl.zst": json_lines(TEXTS)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} is damaged"):
            records_of(tmp_path / name)
