"""Records of files and datasets to labelled documents, or to the reason why they are none."""

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import orjson

from longmlm.data.corpus import SetAside
from longmlm.data.files import files_of, kind_of, readable
from longmlm.data.records import fields_of
from longmlm.data.texts import Fields, Unreadable, value_at
from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.settings import LabelledData, LabelledTask, SpanUnit
from longmlm.errors import DataError
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import Source

GivenSplit = Literal["train", "dev", "test"]
SPLIT_NAMES: dict[GivenSplit, tuple[str, ...]] = {
    "train": ("train", "training"),
    "dev": ("dev", "development", "val", "valid", "validation"),
    "test": ("test", "testing"),
}
SPAN_KEYS = ("start", "end", "label")
PREFIXES, STARTING, ENDING = (*"BIESLU",), (*"BSU",), (*"ESLU",)  # of tags: BIO, BIOES and BILOU
WORD = re.compile(r"\S+")
# NumPy writes a list of strings without commas, and Python would join these strings.
WITHOUT_COMMA = re.compile(r"""\[\s*(['"])[^'"]*\1\s+\1""")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledDocument:
    """A text with what is to be predicted; `split` is the given one, `has_list` says whether its label is a list.

    `origin` and `source` are those of its record, as in SetAside.
    """

    id: str
    text: str
    labels: tuple[str, ...] = ()
    spans: tuple[LabelledSpan, ...] = ()
    split: GivenSplit | None = None
    group: str | None = None
    has_list: bool = False
    origin: str = ""
    source: int = 0

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What documents on two sides, such as training and test, never share: the text, and a group."""
        return ("text", self.text), *([] if self.group is None else [("group", self.group)])

    @property
    def truth(self) -> tuple[str | LabelledSpan, ...]:
        """What is to be predicted: its labels or its spans."""
        return (*self.labels, *self.spans)

    @property
    def all_labels(self) -> set[str]:
        """The labels of the document and of its spans."""
        return {*self.labels, *(span.label for span in self.spans)}


def labelled_documents(task: LabelledTask, aside: list[SetAside]) -> list[LabelledDocument]:
    """Returns the records that are documents, and adds the others to `aside`, with the reasons.

    Every document has a name of its own: its id, or its file and record where another file has the same id.
    """
    documents: dict[str, LabelledDocument] = {}
    seen: set[tuple[str, str | None, str]] = set()
    for origin, fields, source, split in labelled_fields(task.data):
        path, _, offset = origin.rpartition(":")
        try:
            if isinstance(fields, Unreadable):
                raise ValueError(fields.reason)
            document = _document(fields, task, split)
            key = (path, document.split, document.id)
            if document.id and key in seen:
                raise ValueError("its id occurred before")
        except ValueError as error:
            aside.append(SetAside(origin, str(error), source))
            continue
        seen.add(key)
        candidates = (document.id, f"{Path(path).name}:{offset}", origin, f"{origin} ({document.split})")
        name = next(name for name in candidates if name and name not in documents)
        documents[name] = replace(document, id=name, origin=origin, source=source)
    return [*documents.values()]


def labelled_fields(data: LabelledData) -> Iterator[tuple[str, Fields | Unreadable, int, GivenSplit | None]]:
    """Yields origin, fields, number of the source and given split of every record."""
    for number, (source, split) in enumerate(sources_of(data)):
        first = 0
        for path in arrow_files(source) if source.dataset else files_of(source.files):
            if kind_of(path) == ".txt":
                raise DataError(f"{path}: labelled documents are records of JSON, CSV, TSV or Parquet files")
            with readable(path):
                offset, name = -1, source.name_of(str(path))
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
        of_files = partial(Source, delimiter=data.delimiter, quoting=data.quoting, text_field=data.text_field)
        given = (data.files, data.dev_files, data.test_files)
        sources = [of_files(files=files) if files else None for files in given]
    has_splits = any(sources[1:])
    return [(source, name if has_splits else None) for source, name in zip(sources, SPLIT_NAMES, strict=True) if source]


def _document(fields: Fields, task: LabelledTask, split: GivenSplit | None) -> LabelledDocument:
    """Returns the document; raises ValueError with the reason if it is none."""
    data, name = task.data, fields.get(task.data.id_field)
    labels, has_list, spans = (), False, ()
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
    return LabelledDocument(
        id="" if name is None or isinstance(name, Unreadable) else str(name),
        text=text,
        labels=labels,
        spans=spans,
        split=split,
        group=None if is_missing(group) else parse_label(group, "group"),
        has_list=has_list,
    )


def _field(fields: Fields, name: str) -> Any:
    value = value_at(fields, name)
    if isinstance(value, Unreadable):
        raise ValueError(value.reason)
    return value


def _text(fields: Fields, name: str) -> str:
    text = _field(fields, name)
    if not isinstance(text, str | None):
        raise ValueError(f"field {name!r} is not text")
    if not text or text.isspace():
        raise ValueError(f"field {name!r} is empty")
    return text


def parse_labels(value: Any) -> tuple[tuple[str, ...], bool]:
    """Returns the labels, sorted, and whether the value is a list of labels. A label is a string, integer or bool.

    In a table, a list may be written as text, as in JSON or Python.
    """
    value = _parsed(value)
    if not isinstance(value, list | tuple):
        return (parse_label(value),), False
    return tuple(sorted({parse_label(item) for item in value})), True


def parse_label(value: Any, kind: str = "label") -> str:
    """Returns a label, or the name of a group, as text."""
    if is_missing(value):
        raise ValueError(f"no {kind}")
    if isinstance(value, float) and value.is_integer():  # a column of integers in which some are missing
        value = int(value)
    if not isinstance(value, str | int):
        raise ValueError(f"the {kind} is neither a string, an integer nor true or false")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def parse_spans(value: Any, text: str, unit: SpanUnit) -> tuple[LabelledSpan, ...]:
    """Returns spans in characters, in their order, without white space at their ends.

    The value is a list of {start, end, label} or [start, end, label], or a dict of three lists, as some `datasets` are.
    """
    value = _parsed(value)
    if is_missing(value):
        raise ValueError("no spans")
    if isinstance(value, dict) and all(isinstance(value.get(key), list) for key in SPAN_KEYS):
        value = list(zip(*(value[key] for key in SPAN_KEYS), strict=True))
    if not isinstance(value, list | tuple):
        raise ValueError("the spans are not a list")
    words = [match.span() for match in WORD.finditer(text)] if unit == "words" else None
    spans = sorted((_span_of(item, text, words) for item in value), key=lambda span: span.start)
    if any(following.start < span.end for span, following in pairwise(spans)):
        raise ValueError("overlapping spans")
    return tuple(spans)


def parse_tags(words: Any, tags: Any) -> tuple[str, tuple[LabelledSpan, ...]]:
    """Returns the words as a text, and the spans of their tags.

    Example: Anna Karenina in Bern, tagged B-PER I-PER O B-LOC, has PER from character 0 to 13 and LOC from 17 to 21. As
    in conlleval, an I- tag that does not continue a span of its label starts one. E-, S-, L- and U- tags count too.
    """
    words, tags = _parsed(words), _parsed(tags)
    if not all(isinstance(values, list | tuple) for values in (words, tags)):
        raise ValueError("words or tags are not a list")
    if len(words) != len(tags):
        raise ValueError("not as many tags as words")
    if not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("a word that is not text")
    words = [word.strip() for word in words]
    spans, begin, is_open = list[LabelledSpan](), 0, False
    for word, tag in zip(words, tags, strict=True):
        prefix, label = _tag_of(tag)
        if prefix != "O" and is_open and prefix not in STARTING and spans[-1].label == label:
            spans[-1] = LabelledSpan(spans[-1].start, begin + len(word), label)
        elif prefix != "O":
            spans.append(LabelledSpan(begin, begin + len(word), label))
        is_open = prefix != "O" and prefix not in ENDING
        begin += len(word) + 1
    return " ".join(words), tuple(spans)


def is_missing(value: Any) -> bool:
    """Returns whether a field is empty: None, white space or NaN."""
    is_blank = isinstance(value, str) and not value.strip()
    return is_blank or value is None or (isinstance(value, float) and math.isnan(value))


def _tag_of(value: Any) -> tuple[str, str]:
    """Returns the prefix of a tag and its label; a missing tag is O."""
    if is_missing(value) or value == "O":
        return "O", ""
    prefix, dash, label = value.partition("-") if isinstance(value, str) else ("", "", "")
    if prefix not in PREFIXES or not dash or not label:
        raise ValueError(f"the tag {value!r} is neither O nor a prefix (B, I, E, S, L or U), a dash and a label")
    return prefix, label


def _span_of(item: Any, text: str, words: list[tuple[int, int]] | None) -> LabelledSpan:
    parts = [item.get(key) for key in SPAN_KEYS] if isinstance(item, dict) else item
    if not isinstance(parts, list | tuple) or len(parts) != len(SPAN_KEYS) or [*map(type, parts[:2])] != [int, int]:
        raise ValueError("a span without start, end and label")
    start, end, label = parts
    if not 0 <= start < end <= len(text if words is None else words):
        raise ValueError("a span outside the text")
    if words is not None:
        start, end = words[start][0], words[end - 1][1]
    part = text[start:end]
    if not part.strip():
        raise ValueError("a span of white space")
    return LabelledSpan(end - len(part.lstrip()), start + len(part.rstrip()), parse_label(label))


def _parsed(value: Any) -> Any:
    """Returns the list that a string spells, if it does, else the value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        if WITHOUT_COMMA.search(value):
            raise ValueError("a list without commas")
        for parse in (orjson.loads, ast.literal_eval):
            try:
                return parse(value.strip())
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
    return value
