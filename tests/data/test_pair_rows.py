"""Rows for pairs: they know their sentences and documents, leave room for a separator, and lose nothing."""

import json
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmlm.artifacts.rows import SPLITS, RowsManifest, read_rows_manifest
from longmlm.data.corpus import Document, plan_slices, read_slice, text_hash
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.packing import OpenRow, TokenizedDocument, pack_document
from longmlm.data.row import Row
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.settings.prepare import PackingMode, PrepareRecipe
from tests.data.test_packing import SPECIAL, corpus_of

CORPORA = st.lists(st.lists(st.integers(0, 24), max_size=9), min_size=1, max_size=6)
MODES = st.sampled_from(["doc-sentences", "sentence-pair"])
HASH = 2**33


def packed(sizes: list[list[int]], row_length: int, mode: PackingMode, share: float) -> list[list[Row]]:
    """Returns the rows of each document, whose hash is HASH plus its number."""
    row = OpenRow(row_length - 3, SPECIAL, has_pairs=True, short_row_share=share)
    documents = [
        TokenizedDocument(one.sentences, one.source, HASH + number) for number, one in enumerate(corpus_of(sizes))
    ]
    rows = [[*pack_document(row, document, mode)] for document in documents]
    assert not row.length
    return rows


def sentences_of(row: Row) -> list[list[int]]:
    assert row.sentence_starts is not None
    return [part.tolist() for part in np.split(row.input_ids[1:-1], row.sentence_starts[1:] - 1)]


@given(CORPORA, st.integers(5, 16), MODES, st.sampled_from([0.0, 0.5, 1.0]))
def test_rows_hold_every_sentence_of_a_document_in_order_and_are_closed_when_they_must(
    sizes: list[list[int]], row_length: int, mode: PackingMode, share: float
) -> None:
    capacity = row_length - 3
    for number, (rows, document) in enumerate(
        zip(packed(sizes, row_length, mode, share), corpus_of(sizes), strict=True)
    ):
        whole = [token for sentence in document.sentences for token in sentence.input_ids.tolist()]
        assert [token for row in rows for token in row.input_ids[1:-1].tolist()] == whole
        uncut = [one.input_ids.tolist() for one in document.sentences if len(one) <= capacity]
        parts = [*chain.from_iterable(map(sentences_of, rows))]
        assert all(sentence in parts for sentence in uncut)
        for row, following in zip_longest(rows, rows[1:]):
            assert row.document_hashes.tolist() == [number] and row.document_starts.tolist() == [1]
            assert row.sentence_starts[0] == 1 and len(row) <= row_length - 1
            if mode == "sentence-pair":
                assert len(row.sentence_starts) <= 2
            elif (
                following is not None
                and not share
                and sentences_of(row)[0] in uncut
                and sentences_of(following)[0] in uncut
            ):
                assert len(row) - 2 + len(sentences_of(following)[0]) > capacity


def test_short_rows_are_a_share_of_the_rows_whose_lengths_the_document_decides() -> None:
    """Of sentences of one token, every row has the length that was drawn, but the last of its document."""
    sizes, row_length = [[1] * 4_000] * 30, 43
    rows = packed(sizes, row_length, "doc-sentences", 0.25)
    lengths = np.array([len(row) - 2 for of_document in rows for row in of_document[:-1]])
    is_short = lengths < row_length - 3
    expected = 0.25 * 38 / 39  # one draw in 39 is as long as a full row
    assert abs(is_short.mean() - expected) < 4 * (expected * (1 - expected) / len(lengths)) ** 0.5
    counts = np.bincount(lengths[is_short], minlength=40)[2:40]
    assert (abs(counts - counts.mean()) < 4.5 * counts.mean() ** 0.5).all() and lengths.min() == 2
    alone = packed([[1] * 4_000], row_length, "doc-sentences", 0.25)
    assert [len(row) for row in alone[0]] == [len(row) for row in rows[0]]
    assert [len(row) for row in rows[1]] != [len(row) for row in rows[0]]


@pytest.mark.parametrize("mode", ["doc-sentences", "sentence-pair"])
def test_prepare_writes_the_columns_whatever_the_slices_are_packed_by(
    mode: PackingMode, recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    recipe = replace(recipe, packing=mode, pairs=True, short_row_share=0.3)
    manifest = prepare_rows(recipe, vocabulary, tmp_path / "rows")
    assert (manifest.plan.pairs, manifest.plan.short_row_share, manifest.plan.packing) == (True, 0.3, mode)
    records = [record for spans in plan_slices(recipe.sources, 1 << 30) for record in read_slice(spans, recipe.sources)]
    hashes = {text_hash(record.text) % 2**32 for record in records if isinstance(record, Document)}
    found: dict[str, set[int]] = {}
    for split in SPLITS:
        rows = open_rows(tmp_path / "rows", split)
        listed = [rows[row_id] for row_id in range(len(rows))]
        found[split] = {int(row.document_hashes[0]) for row in listed}
        assert max(map(len, listed)) == recipe.row_length - 1
        assert all(row.sentence_starts[0] == 1 and row.sentence_starts[-1] < len(row) - 1 for row in listed)
        assert max(len(row.sentence_starts) for row in listed) > 1
    assert found["train"] | found["held_out"] == hashes and not found["train"] & found["held_out"]
    again = prepare_rows(recipe, vocabulary, tmp_path / "again", lambda *work: run_slices(*work, num_workers=2))
    assert again.sha256 == manifest.sha256


def test_rows_without_pairs_are_read_as_before_and_have_no_such_columns(
    prepared: tuple[Path, RowsManifest], tmp_path: Path
) -> None:
    folder, _ = prepared
    row = open_rows(folder, "train")[0]
    assert row.sentence_starts is None and row.document_hashes is None
    content = json.loads((folder / RowsManifest.FILE).read_text())
    assert not content["plan"].pop("pairs") and not content["plan"].pop("short_row_share")
    (tmp_path / RowsManifest.FILE).write_text(json.dumps(content))
    assert read_rows_manifest(tmp_path).plan == read_rows_manifest(folder).plan
