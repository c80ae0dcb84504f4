"""Documents of the sources, in slices that the input alone decides."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longmlm.artifacts.rows import SPLITS, Split
from longmlm.data.files import Span, files_of, readable
from longmlm.data.foreign_content import UTF16, is_utf16, remedy_of
from longmlm.data.records import extent_of, fields_of_objects, records_of
from longmlm.data.texts import BYTE_ORDER_MARK, Unreadable
from longmlm.errors import DataError
from longmlm.folders import write_text
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import PrepareRecipe, Source

MARK = BYTE_ORDER_MARK.decode()
HASHES = 2**64  # how many values text_hash can take


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the corpus: `origin` is its file and byte or record, or its dataset and record.

    `source` is the number of its source, `family` the hash that decides its side in place of that of its text.
    """

    text: str
    origin: str
    source: int
    family: int | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that is not packed, and the reason; `origin` and `source` are those of a document.

    `copy_of` is the origin of the first of its family.
    """

    origin: str
    reason: str
    source: int
    copy_of: str | None = None


Slice = tuple[Span, ...]


def slice_bytes(spans: Slice) -> int:
    """Returns the number of bytes of text in a slice."""
    return sum(span.size for span in spans)


def plan_slices(sources: Sequence[Source], slice_bytes: int) -> list[Slice]:
    """Cuts the sources, in order, into slices of about `slice_bytes`: a large file gives several, small ones share."""
    slices: list[Slice] = []
    spans: list[Span] = []
    room = slice_bytes
    for number, source in enumerate(sources):
        first = 0
        for path in arrow_files(source) if source.dataset else files_of(source.files):
            with readable(path):
                extent, start = extent_of(path, source), 0
                while start < extent.length:
                    end = min(start + math.ceil(room / extent.unit_bytes), extent.length)
                    if extent.borders:
                        end = next((border for border in extent.borders if border >= end), extent.length)
                    size = round((end - start) * extent.unit_bytes)
                    spans.append(Span(str(path), start, end, number, size, first))
                    start, room = end, room - size
                    if room <= 0:
                        slices.append(tuple(spans))
                        spans, room = [], slice_bytes
            first += extent.length if source.dataset else 0
    return [*slices, tuple(spans)] if spans else slices


def read_slice(spans: Slice, sources: Sequence[Source]) -> Iterator[Document | SetAside]:
    """Yields every record that begins in the slice, as a document or with the reason why it is not one.

    Raises DataError if a file is damaged, or can no longer be read.
    """
    for span in spans:
        source = sources[span.source]
        name = source.name_of(Path(span.path))
        with readable(span.path):
            for offset, text in records_of(span, source):
                is_readable = isinstance(text, Unreadable) or not is_utf16(text)
                record = text if is_readable else Unreadable(UTF16)
                yield document_of(record, f"{name}:{span.first + offset}", span.source)


def document_of(text: str | Unreadable, origin: str, source: int) -> Document | SetAside:
    """Returns the record as a document, without a byte order mark, or with the reason why it is not one."""
    if isinstance(text, Unreadable):
        return SetAside(origin=origin, reason=text.reason, source=source)
    text = text.lstrip(MARK)
    if not text.strip():
        return SetAside(origin=origin, reason="empty", source=source)
    return Document(text, origin, source)


def check_splits(recipe: PrepareRecipe, slices: Sequence[Slice]) -> None:
    """Raises DataError when a split would have no documents; reads only until there is one of each split."""
    fraction, reasons = recipe.held_out_fraction, Counter[str]()
    num_documents, lowest, highest = 0, HASHES, 0
    for record in (record for spans in slices for record in read_slice(spans, recipe.sources)):
        if isinstance(record, SetAside):
            reasons[record.reason] += 1
            continue
        document_hash = text_hash(record.text)
        num_documents, lowest, highest = num_documents + 1, min(lowest, document_hash), max(highest, document_hash)
        if {split_of(one, fraction) for one in (lowest, highest)} == set(SPLITS):
            return
    if not num_documents:
        counted = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        [(commonest, _)] = reasons.most_common(1) or [("no records", 0)]
        remedy = remedy_of(commonest, recipe.sources[0].language)
        files = [file for source in recipe.sources for file in files_of(source.files)]
        if commonest.startswith("no field") and files and (names := fields_of_objects(files[0])):
            remedy = f"set text_field to one of {', '.join(map(repr, names))}"
        raise DataError(f"the sources hold no document ({counted or commonest}): {remedy}")
    if num_documents == 1:
        raise DataError("the sources hold only one document: training and held-out rows need two")
    if lowest == highest:
        raise DataError(f"all {num_documents} documents are the same text: training and held-out rows need two")
    between = (lowest + highest) / 2 / HASHES
    if split_of(lowest, fraction) == "train":
        problem, change = f"none of {num_documents} documents is held out", "more"
        enough = min((lowest * 10_000 // HASHES + 1) / 10_000, between)
    else:
        problem, change = f"all {num_documents} documents are held out", "less"
        enough = max(highest * 10_000 // HASHES / 10_000, between)
    raise DataError(f"{problem} at held_out_fraction = {fraction:g}: set it to {enough:g} or {change}")


def write_set_aside(path: Path, records: Sequence[SetAside]) -> None:
    """Writes a line of JSON per record, to replace what an earlier run wrote."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records]
    write_text(path, "".join(lines))


def text_hash(text: str) -> int:
    """Returns a hash of 64 bits, the same for exact copies."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def split_of(document_hash: int, held_out_fraction: float) -> Split:
    """Returns the split of all documents with this hash, so that copies of a document share one."""
    return "held_out" if document_hash < held_out_fraction * HASHES else "train"
