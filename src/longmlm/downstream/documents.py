"""Labelled documents of a task: which records are documents, and whether there is a task to learn."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longmlm.artifacts.artifact import sha256_of_json
from longmlm.data.corpus import SetAside
from longmlm.data.files import kind_of, open_bytes
from longmlm.data.texts import REMEDIES, Unreadable
from longmlm.downstream.artifacts import Target
from longmlm.downstream.records import GivenSplit, LabelledDocument, labelled_documents, labelled_fields
from longmlm.downstream.settings import LabelledTask
from longmlm.errors import DataError, counted

SIDES: tuple[GivenSplit, ...] = ("test", "dev", "train")  # a text that two sides have stays in the first
DEV_FRACTION = LabelledTask.__dataclass_fields__["dev_fraction"].default


@dataclass(frozen=True, slots=True)
class LabelledCorpus:
    """All documents in their order, the labels that occur, sorted, and the records that were set aside.

    `units` has the unit of each document, as `units_of` returns it.
    """

    documents: tuple[LabelledDocument, ...]
    units: tuple[int, ...]
    labels: tuple[str, ...]
    target: Target
    set_aside: tuple[SetAside, ...]

    @property
    def sha256(self) -> str:
        """The SHA-256 of all documents with their labels, wherever their records are."""
        left_out = ("origin", "source", "has_list")
        documents = [asdict(document).items() for document in self.documents]
        return sha256_of_json([{name: value for name, value in one if name not in left_out} for one in documents])

    def longest(self, numbers: Iterable[int]) -> int:
        """Returns the number of the document with the longest text among those with the given numbers."""
        return max(numbers, key=lambda number: len(self.documents[number].text))


def read_labelled(task: LabelledTask) -> LabelledCorpus:
    """Returns the documents of a task, and the records that cannot be used, with the reasons.

    Set aside are records without text or label, with spans outside the text or overlapping, or with an id that occurred
    before in their file. So are documents that share a text or a group with a given test or development document.
    Raises DataError if nothing can be learnt from what remains.
    """
    aside: list[SetAside] = []
    documents = labelled_documents(task, aside)
    if not documents:
        raise DataError(f"no record is a labelled document{_summary(aside)}{_remedy(task, aside)}")
    data = task.data
    given = {document.split for document in documents if document.split}
    given |= {"dev"} if data.dev_files or data.dev_split else set()
    given |= {"test"} if data.test_files or data.test_split else set()
    if "dev" in given and task.dev_fraction != DEV_FRACTION:
        raise DataError("dev_fraction has no effect, since the data has development documents: remove dev_fraction")
    documents = _without_clashes(documents, aside)
    for side in given.difference(document.split for document in documents):
        raise DataError(f"no {'training' if side == 'train' else side} document can be used{_summary(aside)}")
    target: Target = "labels" if any(document.has_list for document in documents) else "label"
    target = "spans" if task.kind == "labelling" else target
    _check_targets(documents, target, aside)
    labels = sorted(set[str]().union(*(document.all_labels for document in documents)))
    return LabelledCorpus(tuple(documents), units_of(documents), tuple(labels), target, tuple(aside))


def units_of(documents: Sequence[LabelledDocument]) -> tuple[int, ...]:
    """Returns the unit of each document: the number of the first that shares its text or group, also through others."""
    parents = list(range(len(documents)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    first: dict[tuple[str, str], int] = {}
    for number, document in enumerate(documents):
        for key in document.keys:
            one, other = sorted((root(number), root(first.setdefault(key, number))))
            parents[other] = one
    return tuple(root(number) for number in range(len(documents)))


def reasons_in_words(aside: Sequence[SetAside]) -> str:
    """Returns how many records were set aside for each reason, and where the first of them is; empty without any."""
    counts = Counter(item.reason for item in aside)
    first = {item.reason: item.origin for item in reversed(aside)}
    parts = [f"{reason} ({n}, the first at {place_in_words(first[reason])})" for reason, n in counts.most_common()]
    return ", ".join(parts)


def place_in_words(origin: str) -> str:
    """Returns where a record is, such as "line 12 of few.jsonl"; without lines, its number, counted from 0."""
    path, _, offset = origin.rpartition(":")
    if kind_of(Path(path)) == ".parquet" or not Path(path).is_file():  # it is a dataset
        return f"record {offset} of {path}"
    with open_bytes(Path(path)) as file:
        number = 1 + file.read(int(offset)).count(b"\n")
    return f"line {number} of {path}"


def _without_clashes(documents: Sequence[LabelledDocument], aside: list[SetAside]) -> list[LabelledDocument]:
    """Returns the documents without those that share a text or group with one of another given split: set aside."""
    owners: dict[tuple[str, str], GivenSplit] = {}
    kept = []
    for document in sorted(documents, key=lambda document: SIDES.index(document.split or "train")):
        side: GivenSplit = document.split or "train"
        if clash := next((key for key in document.keys if owners.get(key, side) != side), None):
            reason = f"its {clash[0]} is also that of a {owners[clash]} document"
            aside.append(SetAside(document.origin, reason, document.source))
        else:
            owners.update((key, side) for key in document.keys)
            kept.append(document)
    names = {document.id for document in kept}
    return [document for document in documents if document.id in names]


def _check_targets(documents: Sequence[LabelledDocument], target: Target, aside: Sequence[SetAside]) -> None:
    """Raises DataError if nothing can be learnt from the training documents."""
    trained = [document for document in documents if document.split in (None, "train")]
    if not trained:
        raise DataError(f"none of {counted(len(documents), 'document')} is a training document{_summary(aside)}")
    counts = Counter(label for document in trained for label in document.all_labels)
    about = f"{counted(len(trained), 'training document')}, the first at {place_in_words(trained[0].origin)}"
    problem = ""
    if not counts:
        problem = f"no label or span in {about}; check label_field or spans_field"
    elif target != "spans" and max(counts.values()) == 1 and len(counts) >= max(2, len(trained)):
        problem = f"{counted(len(counts), 'class')} in {about}: no class has examples; check label_field"
    elif target != "spans" and len(counts) == 1 and counts.total() == len(trained):
        only = f"{next(iter(counts))!r} is the only class of {about}"
        problem = f"{only}; check label_field, or add documents of another class"
    if problem:
        raise DataError(problem + _summary(aside))


def _summary(aside: Sequence[SetAside]) -> str:
    return f"; set aside: {reasons_in_words(aside)}" if aside else ""


def _remedy(task: LabelledTask, aside: Sequence[SetAside]) -> str:
    """Returns what to change where no record can be read, or has the fields that are named in data; else nothing."""
    data = task.data
    reasons = {item.reason for item in aside}
    if reasons and reasons <= REMEDIES.keys():
        return f"; {REMEDIES[min(reasons)]}"
    records = (fields for _, fields, *_ in labelled_fields(data) if not isinstance(fields, Unreadable))
    if names := ", ".join(map(repr, next(records, []))):
        lacks_field = any(item.reason.startswith("no field") for item in aside)
        return f"; the fields are {names}: name them in data" if lacks_field else ""
    return "; the records have no fields"
