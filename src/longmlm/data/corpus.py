"""Documents of the sources, in slices that the input alone decides."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from longmlm.artifacts.rows import SPLITS, Split
from longmlm.data.files import COMPRESSED, Span, files_of, kind_of, readable
from longmlm.data.records import extent_of, fields_of, records_of
from longmlm.data.texts import BYTE_ORDER_MARK, REMEDIES, Absent, Unreadable, value_at
from longmlm.errors import DataError, counted
from longmlm.folders import write_text
from longmlm.hubs.datasets import SAVED, shards_of
from longmlm.hubs.storage import AnyPath, located
from longmlm.settings.prepare import PrepareRecipe, Source

MARK = BYTE_ORDER_MARK.decode()
SAMPLED_FILES, SAMPLED_RECORDS, SAMPLED_BYTES = 10, 1_000, 8_000_000  # of a source, and of each of these files
MAX_SAMPLED_SPANS = 16
NUM_HASHES = 2**64  # how many values text_hash can take


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the corpus: `origin` is its file and byte or record, or its dataset and record.

    `source` is the number of its source, `group` the value of that source's split_field, `family` the hash that
    decides its split together with that of its copies.
    """

    text: str
    origin: str
    source: int
    group: str | None = None
    family: int | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that is not packed, and the reason; `origin` and `source` are those of a document.

    `copy_of` is the origin of the first document of its family.
    """

    origin: str
    reason: str
    source: int
    copy_of: str | None = None


Slice = tuple[Span, ...]


def slice_bytes(spans: Slice) -> int:
    """Returns the number of bytes of text in a slice."""
    return sum(span.size for span in spans)


def paths_of(source: Source) -> list[AnyPath]:
    """Returns the files of a source, or those from which the split of its dataset is read."""
    return [*map(located, shards_of(source))] if source.dataset else files_of(source.files)


def plan_slices(sources: Sequence[Source], slice_bytes: int) -> list[Slice]:
    """Cuts the sources, in order, into slices of about `slice_bytes`: a large file gives several, small ones share."""
    slices: list[Slice] = []
    spans: list[Span] = []
    room = slice_bytes
    for number, source in enumerate(sources):
        first = 0
        for path in paths_of(source):
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
            first += extent.length if kind_of(path) == ".arrow" else 0
    return [*slices, tuple(spans)] if spans else slices


def read_slice(spans: Slice, sources: Sequence[Source]) -> Iterator[Document | SetAside]:
    """Yields every record that begins in the slice, as a document or with the reason why it is not one.

    Raises DataError if a file is damaged, or can no longer be read.
    """
    for span in spans:
        source = sources[span.source]
        name = source.name_of(span.path)
        with readable(span.path):
            for offset, text, group in records_of(span, source):
                yield document_of(text, f"{name}:{span.first + offset}", span.source, group)


def sample(
    slices: Sequence[Slice], sources: Sequence[Source], num_bytes: int
) -> tuple[list[Iterator[Document]], float]:
    """Returns the documents of each slice, and 1, or those from about `num_bytes` spread over larger slices.

    The number says how many times as much text the slices hold as the documents. A large document may be cut.
    """
    total = sum(map(slice_bytes, slices))
    if total <= num_bytes:
        return [_documents(read_slice(spans, sources)) for spans in slices], 1.0
    sampled = list(_sampled_spans(slices))
    found = [one for span in sampled for one in _records_from(span, sources[span.source], num_bytes // len(sampled))]
    return [_documents(record for record, _ in found)], total / max(1.0, sum(size for _, size in found))


def _documents(records: Iterable[Document | SetAside]) -> Iterator[Document]:
    return (record for record in records if isinstance(record, Document))


def _sampled_spans(slices: Sequence[Slice]) -> Iterator[Span]:
    """Yields parts of the slices to begin reading at; a compressed file would be decompressed up to there."""
    spans = [
        span for spans in slices for span in spans if not span.start or located(span.path).suffix not in COMPRESSED
    ]
    spans = spans[:: -(-len(spans) // MAX_SAMPLED_SPANS)]
    for span in spans:
        length, path = span.end - span.start, located(span.path)
        is_cut = kind_of(path) in (".jsonl", ".parquet", ".arrow") and path.suffix not in COMPRESSED
        num_parts = min(length, MAX_SAMPLED_SPANS // len(spans)) if is_cut else 1
        for begin in range(0, length, -(-length // num_parts)):
            yield replace(span, start=span.start + begin, size=round(span.size * (1 - begin / length)))


def _records_from(span: Span, source: Source, num_bytes: int) -> Iterator[tuple[Document | SetAside, float]]:
    """Yields the first records of a span and the bytes of text that each stands for; the last one is cut."""
    unit_bytes, room = span.size / (span.end - span.start), num_bytes
    with readable(span.path):
        for (offset, text, group), (end, *_) in pairwise(chain(records_of(span, source), [(span.end, "", None)])):
            size = unit_bytes * (end - offset)
            part = min(1.0, room / max(1.0, size)) if isinstance(text, str) else 1.0
            cut = text[: round(part * len(text))] if isinstance(text, str) else text
            yield document_of(cut, span.path, span.source, group), part * size
            room -= round(size)
            if room <= 0:
                return


def document_of(text: str | Unreadable, origin: str, source: int, group: str | None = None) -> Document | SetAside:
    """Returns the record as a document, without a byte order mark, or with the reason why it is not one."""
    if isinstance(text, Unreadable):
        return SetAside(origin=origin, reason=text.reason, source=source)
    text = text.lstrip(MARK)
    if not text.strip():
        return SetAside(origin=origin, reason="empty", source=source)
    return Document(text, origin, source, group)


def check_source(source: Source, output: str) -> None:
    """Raises DataError for a setting that does not apply to these files, or to this dataset.

    An output folder inside the folder of a dataset raises it too, since its files would become part of the dataset.
    """
    kinds, folder = {kind_of(file) for file in files_of(source.files)}, Path(source.dataset or "")
    for name in ("delimiter", "quoting") if ".csv" not in kinds else ():
        if getattr(source, name) is not None:
            files = ", ".join(source.files)
            raise DataError(f"{name} has no effect, since files has no .csv or .tsv file ({files}): remove it")
    if source.dataset and folder.is_dir():
        is_saved = any((folder / name).is_file() for name in SAVED)
        unused = {"revision": source.revision, "subset": source.subset if is_saved else None}
        for name in (name for name, value in unused.items() if value):
            raise DataError(f"{name} has no effect, since the dataset {folder} is a local folder: remove it")
        if Path(output).resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{output} is inside the dataset {folder} and would become part of it: name another output")


def check_fields(source: Source, paths: Sequence[str]) -> None:
    """Raises DataError for a field that none of the first records of ten JSON files, spread over the source, has.

    One of several fields of the text may come later, unless the files have no more records.
    The columns of a table are checked when it is opened.
    """
    paths = [path for path in paths if kind_of(located(path)) in (".jsonl", ".json")]
    missing, known = source.read_fields, dict[str, None]()
    sampled = paths[:: -(-len(paths) // SAMPLED_FILES) or 1]
    has_more = len(sampled) < len(paths)
    for path in sampled:
        with readable(path):
            for number, (offset, fields) in enumerate(fields_of(located(path), source), 1):
                if isinstance(fields, dict):
                    known |= dict.fromkeys(fields)
                    missing = [name for name in missing if isinstance(value_at(fields, name), Absent)]
                if not missing:
                    return
                if offset > SAMPLED_BYTES or number == SAMPLED_RECORDS:
                    has_more = True
                    break
    is_unknown = not has_more or {*source.fields} <= {*missing} or source.split_field in missing
    if known and is_unknown:
        files, setting = source.name_of(", ".join(source.files)), source.setting_of(missing[0])
        names = ", ".join(map(repr, known))
        which = "some" if setting == "text_fields" else "one"
        raise DataError(f"no record of {files} has the field {missing[0]!r}: set {setting} to {which} of {names}")


def check_splits(recipe: PrepareRecipe, slices: Sequence[Slice]) -> None:
    """Raises DataError when a split would have no documents; reads only until there is one of each split."""
    fraction, reasons = recipe.held_out_fraction, Counter[str]()
    for number, source in enumerate(recipe.sources):
        check_fields(source, [*dict.fromkeys(span.path for spans in slices for span in spans if span.source == number)])
    num_documents, lowest, highest, found = 0, NUM_HASHES, 0, set[Split]()
    for record in (record for spans in slices for record in read_slice(spans, recipe.sources)):
        if isinstance(record, SetAside):
            reasons[record.reason] += 1
            continue
        text_key = text_hash(record.text)
        found.add(side_of(record, text_key, recipe))
        if found == set(SPLITS):
            return
        if not recipe.sources[record.source].held_out:
            key = side_key(record, text_key)
            num_documents, lowest, highest = num_documents + 1, min(lowest, key), max(highest, key)
    if not num_documents:
        found_reasons = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        [(commonest, _)] = reasons.most_common(1) or [("no records", 0)]
        remedy = REMEDIES.get(commonest, "check text_field")
        which = "sources that are not held out" if found else "sources"
        raise DataError(f"the {which} hold no document ({found_reasons or commonest}): {remedy}")
    if lowest == highest and not any(source.held_out for source in recipe.sources):
        is_grouped = any(source.split_field for source in recipe.sources)
        same = "value in split_field" if is_grouped else "text"
        problem = f"every document has the same {same}" if num_documents > 1 else "the sources hold only one document"
        raise DataError(f"{problem}: training and held-out rows need two")
    raise DataError(one_sided_message(counted(num_documents, "document"), fraction, lowest, highest))


def one_sided_message(documents: str, fraction: float, lowest: int, highest: int) -> str:
    """Returns that documents with hashes from `lowest` to `highest` land in one split, and a fraction that helps."""
    between = (lowest + highest) / 2 / NUM_HASHES
    if fraction * NUM_HASHES <= lowest:
        which, enough = "none", f"{min((lowest * 10_000 // NUM_HASHES + 1) / 10_000, between):g} or more"
    else:
        which, enough = "each", f"{max(highest * 10_000 // NUM_HASHES / 10_000, between):g} or less"
    return f"{which} of {documents} is held out at held_out_fraction = {fraction:g}: set it to {enough}"


def write_set_aside(path: Path, records: Sequence[SetAside]) -> None:
    """Writes a line of JSON per record, to replace what an earlier run wrote."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records]
    write_text(path, "".join(lines))


def text_hash(text: str) -> int:
    """Returns a hash of 64 bits, the same for exact copies."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def side_of(document: Document, text_key: int, recipe: PrepareRecipe) -> Split:
    """Returns the split of a document whose text has the hash `text_key`."""
    is_held_out = recipe.sources[document.source].held_out
    return "held_out" if is_held_out else split_of(side_key(document, text_key), recipe.held_out_fraction)


def side_key(document: Document, text_key: int) -> int:
    """Returns the hash that decides the split of a document: of its family, else its group, else its text."""
    if document.family is not None:
        return document.family
    return text_key if document.group is None else text_hash(document.group)


def split_of(key: int, held_out_fraction: float) -> Split:
    """Returns the split of all documents with this hash, such as copies of a text or the documents of a group."""
    return "held_out" if key < held_out_fraction * NUM_HASHES else "train"
