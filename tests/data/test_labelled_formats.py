"""Labelled documents are read as texts are: from every format, whatever is in the other fields of a record."""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.data.labelled_records import LabelledRecord, labelled_records
from longmlm.settings.downstream import LabelledData, LabelledTask
from tests.data.test_formats import DATASETS, FILES, NAMES, OTHER_VALUES, SOUND, TEXTS, source_of


def found(**data: object) -> list:
    """Returns the documents, and the records that are none."""
    task = LabelledTask(kind="classification", data=LabelledData(**data))
    return [item.document if isinstance(item, LabelledRecord) else item for item in labelled_records(task)]


@pytest.mark.parametrize("name", [*FILES, *(f"dataset of {name}" for name in DATASETS)])
def test_a_labelled_text_is_the_same_in_every_format(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "corpus").mkdir()
    texts = [document.text for document in found(**source_of(name, tmp_path / "corpus"))]
    assert dict(zip(TEXTS, texts, strict=True)) == TEXTS


def test_what_is_in_another_field_or_column_does_not_cost_a_document(tmp_path: Path) -> None:
    text = f'"label": "a", "text": "{SOUND}"'.encode()
    members = [b"%b: %b" % (name, value) for value in OTHER_VALUES.values() for name in NAMES]
    lines = [b"{%b}\n" % b", ".join(parts) for member in members for parts in ([text, member], [member, text])]
    (tmp_path / "other.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "a.csv").write_bytes(f"text,label,other\n{SOUND},a,".encode() + b"caf\xe9\n")
    raw = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    late = pa.array([2**50], pa.timestamp("s"))
    columns = [pa.array([SOUND]), pa.array(["a"]), raw, raw, late]
    pq.write_table(pa.Table.from_arrays(columns, ["text", "label", "other", "other", "when"]), tmp_path / "b.parquet")
    for id_field in ("other", "when"):
        documents = found(files=(f"{tmp_path}/*",), id_field=id_field)
        assert [(document.text, document.labels) for document in documents] == [(SOUND, ("a",))] * (len(lines) + 2)
    of_tables = found(files=(f"{tmp_path}/a.csv", f"{tmp_path}/b.parquet"), label_field="other")
    assert of_tables and not any(isinstance(item, LabelledRecord) for item in of_tables)
