"""Files of a corpus, and the records and texts that are read from them."""

import gzip
import json
from pathlib import Path

from backports import zstd

from longmlm.data.corpus import Document, SetAside, plan_slices, read_slice
from longmlm.settings.prepare import Source

WHOLE = 1 << 40


def records_of(*files: Path | str, text_field: str = "text") -> list[Document | SetAside]:
    """Returns the records of files, in order."""
    sources = [Source(files=tuple(map(str, files)), text_field=text_field)]
    return [record for spans in plan_slices(sources, WHOLE) for record in read_slice(spans, sources)]


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
        case ".zst":
            return zstd.compress(content)
        case _:
            return content
