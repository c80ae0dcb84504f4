"""Notes on rows: splits far from what was asked for, sources that are missing from a split, and many broken records."""

from dataclasses import replace

import pytest

from longmlm.artifacts.rows import Families, RowsManifest, SourceRecord
from longmlm.data.notes import rows_notes
from longmlm.data.texts import BROKEN_CSV, BROKEN_JSON
from longmlm.reports.packing import Example, packing_page
from tests.support.accepted import lines_of
from tests.support.rows import rows_manifest


def manifest_of(asked: float, *tokens: tuple[int, int], **changes: object) -> RowsManifest:
    """Returns a manifest with these training and held-out tokens of each source."""
    made = rows_manifest()
    train, held_out = (
        replace(made.report.train, tokens_per_source=own, unknown_per_source=(0,) * len(own))
        for own in zip(*tokens, strict=True)
    )
    sources = tuple(SourceRecord(files=(), name=f"part-{number}") for number in range(len(tokens)))
    report = replace(made.report, train=train, held_out=held_out)
    return replace(made, plan=replace(made.plan, held_out_fraction=asked, sources=sources), report=report, **changes)


@pytest.mark.parametrize(
    ("asked", "train", "held_out", "share", "advice"),
    [
        (0.3, 96, 4, "4.0%", "higher"),
        (0.3, 7, 93, "93.0%", "lower"),
        (0.3, 2, 98, "98.0%", "lower"),
        (0.01, 970, 30, "3.0%", "lower"),
        (0.01, 9_960, 40, "0.4%", "higher"),
        (0.8, 9, 91, "91.0%", "lower"),
    ],
)
def test_a_share_of_less_than_half_or_more_than_twice_what_was_asked_is_noted_on_the_page_too(
    asked: float, train: int, held_out: int, share: str, advice: str
) -> None:
    manifest = manifest_of(asked, (train, held_out))
    [note] = rows_notes(manifest)
    assert note.startswith(f"note: {share} of the tokens are held out, not {asked:.1%}, since long documents are not")
    assert f"set held_out_fraction {advice}," in note
    cell = f"{note.removeprefix('note: ')} |"
    assert cell in lines_of(packing_page(manifest, Example(3, 1, "x"), "")).splitlines()
    [source] = manifest.plan.sources
    grouped = replace(manifest, plan=replace(manifest.plan, sources=(replace(source, split_field="book"),)))
    assert "since documents with the same split_field are not divided" in next(rows_notes(grouped))
    families = replace(grouped.report, duplicates=Families(count=1, leaks=0, largest=()))
    assert "with the same split_field and copies are" in next(rows_notes(replace(grouped, report=families)))


@pytest.mark.parametrize(("asked", "train", "held_out"), [(0.3, 70, 30), (0.3, 42, 58), (0.3, 84, 16), (0.01, 981, 19)])
def test_a_share_near_what_was_asked_is_not_noted(asked: float, train: int, held_out: int) -> None:
    manifest = manifest_of(asked, (train, held_out))
    assert not [*rows_notes(manifest)]
    assert "Notes" not in lines_of(packing_page(manifest, Example(3, 1, "x"), "")).splitlines()


def test_a_source_that_is_held_out_as_a_whole_has_no_share() -> None:
    manifest = manifest_of(0.3, (70, 30), (0, 900))
    first, second = manifest.plan.sources
    assert [*rows_notes(manifest)][1] == (
        "note: part-1 has no training rows, since none of its documents is in that split: add documents"
    )
    whole = replace(manifest, plan=replace(manifest.plan, sources=(first, replace(second, held_out=True))))
    assert not [*rows_notes(whole)]


def test_a_source_without_held_out_rows_is_named() -> None:
    [note] = rows_notes(manifest_of(0.3, (600, 400), (50, 0)))
    assert note.startswith("note: part-1 has no held-out rows")


@pytest.mark.parametrize("reason", [BROKEN_CSV, BROKEN_JSON])
def test_many_broken_records_are_noted_with_the_setting(reason: str) -> None:
    manifest = manifest_of(0.3, (70, 30))
    for broken, is_noted in ((9_197, True), (1, True), (0, False)):
        aside = replace(manifest.report, set_aside={reason: broken, "empty": 50})
        notes = [*rows_notes(replace(manifest, report=aside))]
        assert len(notes) == is_noted
        if is_noted:
            assert f"note: {broken:,} of {broken + 70:,} records are {reason}: " in notes[0]
            assert ('quoting to "none"' if reason == BROKEN_CSV else "one object per line") in notes[0]
    few = replace(manifest.report, set_aside={reason: 1, "empty": 500})
    assert not [*rows_notes(replace(manifest, report=few))]
