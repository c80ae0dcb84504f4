"""Contents that a file's name does not promise, such as a PDF file named .txt, each with its remedy."""

import re

from longmlm.data.files import ending_of, kind_of, open_bytes, readable
from longmlm.data.texts import BYTE_ORDER_MARK
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath

HEAD_BYTES = 1 << 16  # of a file that are looked at
SIGNATURES = {
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32: save it as UTF-8",
    rb"\xff\xfe|\xfe\xff|([^\0]\0){4}|(\0[^\0]){4}": "UTF-16: save it as UTF-8",
    rb"%PDF-\d": "a PDF file: extract its text",
    rb"PK\x03\x04": "a ZIP archive or an office document: unpack it, or save its text as UTF-8",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1|\{\\rtf\d": "an office document: save its text as UTF-8",
    rb"\x1f\x8b": "compressed with gzip: add .gz to its name",
    rb"\x28\xb5\x2f\xfd": "compressed with zstd: add .zst to its name",
    rb"BZh\d1AY&SY": "compressed with bzip2: add .bz2 to its name",
    rb"\xfd7zXZ\0": "compressed with xz: add .xz to its name",
    rb".{257}ustar": "an archive: unpack it",
    rb"PAR1[\x15\x19]": "a Parquet file: give its name the ending .parquet",
    rb"ARROW1\0\0|\xff{4}.{3}\0": "an Arrow file: name the dataset's folder in `dataset`, or save it as Parquet",
}
MARKUP = re.compile(rb"\s*<(!doctype\s+html|html|\?xml)\b", re.IGNORECASE)
NO_LINES = re.compile(rb"\s*(\[|\{\s*\n)")  # of JSON


def check_content(path: AnyPath) -> None:
    """Raises DataError if the beginning of a .jsonl, .json or .csv file shows that it holds something else."""
    head = head_of(path, HEAD_BYTES)
    problem = foreign_content(head)
    if MARKUP.match(head):
        problem = "HTML or XML: save its text as .txt or .jsonl"
    elif kind_of(path) == ".jsonl" and NO_LINES.match(head):
        problem = "a JSON array, or JSON over several lines: give its name the ending .json"
    if problem:
        raise DataError(f"{path} is no {ending_of(path)} file but {problem}")


def foreign_content(head: bytes) -> str | None:
    """Returns what the first bytes of a file are, with the remedy; None for what may be text in UTF-8."""
    matching = (content for signature, content in SIGNATURES.items() if re.match(signature, head, re.DOTALL))
    return next(matching, None)


def head_of(path: AnyPath, num_bytes: int) -> bytes:
    """Returns the first bytes of a file, without a byte order mark."""
    with readable(path), open_bytes(path) as stream:
        return stream.read(num_bytes).removeprefix(BYTE_ORDER_MARK)
