"""Files of labelled records, and what is read from them."""

import json
from pathlib import Path
from typing import Any

from longmlm.downstream.documents import LabelledCorpus, read_labelled
from longmlm.downstream.settings import LabelledData, LabelledTask, TaskKind

Records = list[dict[str, Any]]


def json_bytes(records: Records) -> bytes:
    """Returns the records as JSON lines."""
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def read(folder: Path, records: Records, kind: TaskKind = "classification", **data: Any) -> LabelledCorpus:
    """Returns what is read from the records in a file, documents.jsonl."""
    path = folder / "documents.jsonl"
    path.write_bytes(json_bytes(records))
    return read_labelled(LabelledTask(kind=kind, data=LabelledData(files=(str(path),), **data)))


def labelled(*labels: Any) -> Records:
    """Returns a record with each of these labels."""
    return [{"id": f"d{n}", "text": f"Text {n}.", "label": label} for n, label in enumerate(labels)]


def reasons(corpus: LabelledCorpus) -> list[str]:
    """Returns why records were set aside."""
    return [item.reason for item in corpus.set_aside]
