"""Contents that a file's name does not promise, such as a PDF file named .txt, each with its remedy."""

import json
import re

from longmlm.data.delimited import BACKSLASHES
from longmlm.data.delimited import PROBLEMS as CSV_PROBLEMS
from longmlm.data.files import ending_of, kind_of, open_bytes, readable
from longmlm.data.json_lines import PROBLEMS as JSON_PROBLEMS
from longmlm.data.texts import BAD_ENCODING, BYTE_ORDER_MARK
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath

HEAD_BYTES = 1 << 16  # of a file that are looked at
HEAD_CHARACTERS = 4_000  # that are looked at for UTF-16, an even number
MIN_CHARACTERS = 4
UTF16 = "UTF-16: save it as UTF-8"
ENCODINGS = {"zh": "GB18030", "ja": "SHIFT-JIS", "ko": "EUC-KR", "ru": "WINDOWS-1251"}
SIGNATURES = {
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32: save it as UTF-8",
    rb"\xff\xfe|\xfe\xff": UTF16,
    rb"%PDF-\d": "a PDF file: extract its text",
    rb"PK\x03\x04": "a ZIP archive or an office document: unpack it, or save its text as UTF-8",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an office document: save its text as UTF-8",
    rb"\{\\rtf\d": "an RTF document: save its text as UTF-8",
    rb"\x1f\x8b": "compressed with gzip: add .gz to its name",
    rb"\x28\xb5\x2f\xfd": "compressed with zstd: add .zst to its name",
    rb"BZh\d1AY&SY": "compressed with bzip2: add .bz2 to its name",
    rb"\xfd7zXZ\0": "compressed with xz: add .xz to its name",
    rb"\x04\x22\x4d\x18|\x1f\x9d": "compressed: decompress it, or compress it with gzip or zstd",
    rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|.{257}ustar": "an archive: unpack it",
    rb"PAR1[\x15\x19]": "a Parquet file: give its name the ending .parquet",
    rb"ARROW1\0\0|\xff{4}.{3}\0": "an Arrow file: name the dataset's folder in `dataset`, or save it as Parquet",
    rb"SQLite format 3\0": "an SQLite database: save its text as .jsonl",
}
MARKUP = re.compile(rb"\s*<(!doctype\s+html|html|\?xml)\b", re.IGNORECASE)
ONE_OBJECT = "write one object per line, as `jq -c . OLD > NEW.jsonl` does"
RENAME = "give its name the ending .json"


def check_content(path: AnyPath) -> None:
    """Raises DataError if the beginning of a .jsonl, .json or .csv file shows that it holds something else."""
    head = head_of(path, HEAD_BYTES)
    problem = foreign_content(head) or (MARKUP.match(head) and "HTML or XML: save its text as .txt or .jsonl")
    if kind_of(path) == ".jsonl":
        problem = problem or _other_json(head.lstrip())
    elif kind_of(path) == ".csv" and re.match(rb'\s*\{\s*"', head):
        problem = problem or "JSON: give its name the ending .jsonl"
    if problem:
        raise DataError(f"{path} is no {ending_of(path)} file but {problem}")


def foreign_content(head: bytes) -> str | None:
    """Returns what the first bytes of a file are, with the remedy; None for what may be text in UTF-8."""
    for signature, content in SIGNATURES.items():
        if re.match(signature, head, re.DOTALL):
            return content
    return UTF16 if is_utf16(head.decode("latin-1")) else None


def is_utf16(text: str) -> bool:
    """Returns whether a text seems to be UTF-16 without a mark, of which each byte was read as a character.

    Then every second character is NUL, if most are ASCII: "Yes" is 59 00 65 00 73 00, or 00 59 00 65 00 73.
    """
    head = text[:HEAD_CHARACTERS]
    if "\0" not in head or len(head) < MIN_CHARACTERS or len(head) % 2:
        return False
    few, many = sorted(head[first::2].count("\0") for first in (0, 1))
    return many > 0.4 * len(head) and few < 0.01 * len(head)


def head_of(path: AnyPath, num_bytes: int) -> bytes:
    """Returns the first bytes of a file, without a byte order mark."""
    with readable(path), open_bytes(path) as stream:
        return stream.read(num_bytes).removeprefix(BYTE_ORDER_MARK)


def remedy_of(reason: str, language: str) -> str:
    """Returns what to do about records that were set aside for a reason; `language` is that of the text."""
    if reason == BAD_ENCODING:
        return (
            f"save the files as UTF-8, as `iconv -f {ENCODINGS.get(language, 'WINDOWS-1252')} -t UTF-8 OLD > NEW` does"
        )
    if reason in JSON_PROBLEMS:
        return ONE_OBJECT
    if reason == BACKSLASHES:
        return "write two quotes for one inside a field"
    if reason in CSV_PROBLEMS:
        return 'check delimiter, and set quoting to "none" if quotes are text, to "double" if fields are in quotes'
    return "check text_field"


def _other_json(head: bytes) -> str | None:
    """Returns what the beginning of a file of JSON is if it is not JSON lines; None if it may be."""
    first, _, rest = head.partition(b"\n")
    if first.startswith(b"[") and not (rest.strip() and _end_of_json(first)):
        return f"a JSON array: {RENAME}"
    if not rest and re.search(rb"\}\r+\{", first):
        return r"lines that end in CR alone: `tr '\r' '\n' < OLD > NEW.jsonl` converts them"
    if first.strip() == b"{" or (first.startswith(b"{") and not _end_of_json(first) and _end_of_json(head)):
        return f"JSON over several lines: {RENAME}"
    return None


def _end_of_json(encoded: bytes) -> int:
    """Returns where the first JSON value ends; 0 if there is none."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(encoded.decode(errors="replace"))[1]
    except (ValueError, RecursionError):
        return 0
