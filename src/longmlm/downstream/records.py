"""Records of files and datasets to labelled documents, or to the reason why they are none."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from longmlm.data.corpus import SetAside
from longmlm.data.files import files_of, kind_of, readable
from longmlm.data.foreign_content import UTF16, is_utf16
from longmlm.data.records import fields_of
from longmlm.data.texts import Fields, Unreadable
from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.settings import LabelledData, LabelledTask
from longmlm.downstream.values import is_missing, parse_label, parse_labels, parse_spans, parse_tags
from longmlm.errors import DataError
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import Source

GivenSplit = Literal["train", "dev", "test"]
SPLIT_NAMES: dict[GivenSplit, tuple[str, ...]] = {
    "train": ("train", "training"),
    "dev": ("dev", "development", "val", "valid", "validation"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledDocument:
    """A text with what is to be predicted; `split` is the given one."""

    id: str
    text: str
    labels: tuple[str, ...] = ()
    spans: tuple[LabelledSpan, ...] = ()
    split: GivenSplit | None = None
    group: str | None = None

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What documents on two sides, such as training and test, never share: the text, and a group."""
        return ("text", self.text), *([] if self.group is None else [("group", self.group)])

    @property
    def all_labels(self) -> set[str]:
        """The labels of the document and of its spans."""
        return {*self.labels, *(span.label for span in self.spans)}


@dataclass(frozen=True, slots=True)
class LabelledRecord:
    """A record that is a document; `has_list` says whether its label is a list."""

    document: LabelledDocument
    origin: str
    source: int
    has_list: bool

    def set_aside(self, reason: str) -> SetAside:
        """Returns the record as one that is not used."""
        return SetAside(self.origin, reason, self.source)

    @property
    def is_trained(self) -> bool:
        """Whether it may be a training document."""
        return self.document.split in (None, "train")


def labelled_records(task: LabelledTask) -> Iterator[LabelledRecord | SetAside]:
    """Yields every record, as a document or with the reason why it is none.

    Every document has a name of its own: its id, or its file and record where another file has the same id.
    """
    names: set[str] = set()
    seen: set[tuple[str, str | None, str]] = set()
    for item in _records(task):
        if isinstance(item, SetAside):
            yield item
            continue
        document, (path, _, offset) = item.document, item.origin.rpartition(":")
        key = (path, document.split, document.id)
        if document.id and key in seen:
            yield item.set_aside("its id occurred before")
            continue
        seen.add(key)
        candidates = (document.id, f"{Path(path).name}:{offset}", item.origin, f"{item.origin} ({document.split})")
        name = next(name for name in candidates if name and name not in names)
        names.add(name)
        yield replace(item, document=replace(document, id=name))


def labelled_fields(data: LabelledData) -> Iterator[tuple[str, Fields | Unreadable, int, GivenSplit | None]]:
    """Yields origin, fields, number of the source and given split of every record."""
    for number, (source, split) in enumerate(sources_of(data)):
        first = 0
        for path in arrow_files(source) if source.dataset else files_of(source.files):
            if kind_of(path) == ".txt":
                raise DataError(f"{path}: labelled documents are records of .jsonl, .csv or .parquet files")
            with readable(path):
                offset, name = -1, source.name_of(path)
                for offset, fields in fields_of(path, source):
                    yield f"{name}:{first + offset}", fields, number, split
            first += offset + 1 if source.dataset else 0


def sources_of(data: LabelledData) -> list[tuple[Source, GivenSplit | None]]:
    """Returns the sources, each with the split that the settings give it."""
    if data.dataset:
        of_dataset = partial(Source, dataset=data.dataset, subset=data.subset, revision=data.revision)
        splits = (data.train_split, data.dev_split, data.test_split)
        sources = [of_dataset(split=split, text_field=data.text_field) if split else None for split in splits]
    else:
        of_files = partial(Source, delimiter=data.delimiter, text_field=data.text_field)
        given = (data.files, data.dev_files, data.test_files)
        sources = [of_files(files=files) if files else None for files in given]
    has_splits = any(sources[1:])
    return [(source, name if has_splits else None) for source, name in zip(sources, SPLIT_NAMES, strict=True) if source]


def _records(task: LabelledTask) -> Iterator[LabelledRecord | SetAside]:
    for origin, fields, source, split in labelled_fields(task.data):
        try:
            if isinstance(fields, Unreadable):
                raise ValueError(fields.reason)
            document, has_list = _document(fields, task, split)
            yield LabelledRecord(document, origin, source, has_list)
        except ValueError as error:
            yield SetAside(origin, str(error), source)


def _document(fields: Fields, task: LabelledTask, split: GivenSplit | None) -> tuple[LabelledDocument, bool]:
    """Returns the document, and whether its label is a list; raises ValueError with the reason if it is none."""
    data, name = task.data, fields.get(task.data.id_field)
    spans: tuple[LabelledSpan, ...] = ()
    labels, has_list = (), False
    if data.tags_field:
        text, spans = parse_tags(_field(fields, data.text_field), _field(fields, data.tags_field))
    else:
        text = _text(fields, data.text_field)
    if data.split_field:
        given = str(_field(fields, data.split_field)).strip().lower()
        split = next((split for split, names in SPLIT_NAMES.items() if given in names), None)
        if split is None:
            raise ValueError(f"its {data.split_field!r} is neither train, dev nor test")
    group = _field(fields, data.group_field) if data.group_field else None
    if task.kind == "classification":
        labels, has_list = parse_labels(_field(fields, data.label_field))
    elif not data.tags_field:
        spans = parse_spans(_field(fields, data.spans_field), text, data.span_unit)
    document = LabelledDocument(
        id="" if name is None or isinstance(name, Unreadable) else str(name),
        text=text,
        labels=labels,
        spans=spans,
        split=split,
        group=None if is_missing(group) else parse_label(group, "group"),
    )
    return document, has_list


def _field(fields: Fields, name: str) -> Any:
    if name not in fields:
        raise ValueError(f"no field {name!r}")
    if isinstance(fields[name], Unreadable):
        raise ValueError(fields[name].reason)
    return fields[name]


def _text(fields: Fields, name: str) -> str:
    text = _field(fields, name)
    if not isinstance(text, str | None):
        raise ValueError(f"field {name!r} is not text")
    if not text or text.isspace():
        raise ValueError(f"field {name!r} is empty")
    if is_utf16(text):
        raise ValueError(UTF16)
    return text
