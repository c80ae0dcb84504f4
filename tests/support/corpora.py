"""Files of a corpus, and the records and texts that are read from them."""

import bz2
import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backports import zstd

from longmlm.data.corpus import Document, SetAside, plan_slices, read_slice
from longmlm.data.files import files_of
from longmlm.data.records import fields_of
from longmlm.errors import DataError
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import Source

WHOLE = 1 << 40


def records_of(
    *files: Path | str, slice_bytes: int = WHOLE, sources: Sequence[Source] = (), **settings: str
) -> list[Document | SetAside]:
    """Returns the records of files, or of sources, in order."""
    sources = sources or [Source(files=tuple(map(str, files)), **settings)]
    return [record for spans in plan_slices(sources, slice_bytes) for record in read_slice(spans, sources)]


def outcome(path: Path, slice_bytes: int = WHOLE) -> list[Document | SetAside] | str:
    """Returns the records of a file, or why it is refused."""
    try:
        return records_of(path, slice_bytes=slice_bytes)
    except DataError as error:
        return str(error)


def contents(records: Sequence[Document | SetAside]) -> list[str | tuple[str]]:
    """Returns the text of each document, and in a tuple the reason why a record is none."""
    return [record.text if isinstance(record, Document) else (record.reason,) for record in records]


def texts_of(*files: Path | str) -> list[str]:
    """Returns the texts of files in which no record is set aside."""
    records = records_of(*files)
    assert all(isinstance(record, Document) for record in records)
    return [record.text for record in records if isinstance(record, Document)]


def json_lines(texts: list[str], end: str = "\n") -> bytes:
    """Returns a line of JSON for each text."""
    return "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) + end for text in texts).encode()


def compressed(content: bytes, ending: str) -> bytes:
    """Returns the content as a file with this ending has it."""
    match ending:
        case ".gz":
            return gzip.compress(content)
        case ".bz2":
            return bz2.compress(content)
        case ".xz":
            return lzma.compress(content)
        case ".zst":
            return zstd.compress(content)
        case _:
            return content


def all_fields(source: Source) -> list[Any]:
    """Returns the fields of every record of a source, or why it cannot be read."""
    paths = arrow_files(source) if source.dataset else files_of(source.files)
    return [fields for path in paths for _, fields in fields_of(path, source)]
