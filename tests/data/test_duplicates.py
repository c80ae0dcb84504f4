"""Copies of documents: found, set aside with the origin of the first, and never on both sides."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmlm.artifacts.rows import SPLITS, RowsManifest, read_rows_manifest
from longmlm.data.corpus import text_hash
from longmlm.data.duplicates import first_copies, survey_slice
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.rows import open_rows
from longmlm.data.slices import SURVEYS, SliceJob, Work, pack_slice
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.folders import partial_of, verify
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.data.conftest import DEMO
from tests.data.test_signatures import changed

NUM_DOCUMENTS = 40
SHARES = (0.0, 0.005, 0.01)  # of the words of copies that are changed: all are found
MARK = re.compile(r"mark(\d+)e")


@given(keys=st.lists(st.lists(st.integers(0, 9), min_size=12, max_size=12), min_size=1, max_size=3))
def test_families_are_what_copies_and_copies_of_copies_join(keys: list[list[int]]) -> None:
    family = [*range(12)]
    for _ in family:  # each pass joins neighbours
        for one in range(12):
            linked = [other for other in range(12) if any(key[one] == key[other] for key in keys)]
            family[one] = min(family[other] for other in linked)
    assert first_copies(np.array(key, dtype=np.uint64) for key in keys).tolist() == family


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> PrepareRecipe:
    """Documents with copies after them, of which each bears the mark of its family; two records are no documents."""
    random_numbers = random.Random(1)
    lines = DEMO.read_text(encoding="utf-8").splitlines()[:NUM_DOCUMENTS]
    texts = [f"{json.loads(line)['text'][:3_000]} mark{number}e" for number, line in enumerate(lines)]
    copies = [
        f"{changed(text, share, random_numbers)} {mark}"
        for text, mark in (text.rsplit(" ", 1) for text in texts[:30])
        for share in SHARES
    ]
    copies = [
        copy if MARK.search(copy) else f"{copy} {MARK.search(texts[at // 3])[0]}" for at, copy in enumerate(copies)
    ]
    random_numbers.shuffle(copies)
    lines = ["broken", *(json.dumps({"text": text}) for text in [*texts, *copies]), "{}"]
    corpus = tmp_path_factory.mktemp("copies") / "corpus.jsonl"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    return PrepareRecipe(
        tokenizer="tiny",
        row_length=256,
        sources=(Source(files=(str(corpus),)),),
        held_out_fraction=0.4,
        slice_bytes=80_000,
        duplicates="near",
    )


def marks(folder: Path, vocabulary: Vocabulary) -> list[Counter[str]]:
    """Returns how many documents of each family the rows of each split hold."""
    found = []
    for split in SPLITS:
        rows = open_rows(folder, split)
        ids = (token_id for number in range(len(rows)) for token_id in rows[number].input_ids[1:-1].tolist())
        text = "".join(map(vocabulary.tokenizer.id_to_token, ids))
        found.append(Counter(MARK.findall(text)))
    return found


def test_the_first_of_a_family_stays_and_the_others_are_set_aside_with_its_origin(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path
) -> None:
    report = prepare_rows(recipe, vocabulary, output).report
    train, held_out = marks(output, vocabulary)
    assert not train & held_out and (train | held_out) == Counter(map(str, range(NUM_DOCUMENTS)))
    assert report.train.documents + report.held_out.documents == NUM_DOCUMENTS
    assert report.train.copies == report.held_out.copies == 0
    assert report.set_aside == {
        "duplicate": 30,
        "near duplicate": 60,
        "not a JSON object": 1,
        "no field 'text'": 1,
    }
    corpus = Path(recipe.sources[0].files[0]).read_bytes()
    lines = [line for path in sorted(output.glob("set_aside/*")) for line in path.read_text("utf-8").splitlines()]
    copies = [record for record in map(json.loads, lines) if record["copy_of"]]
    assert (len(lines), len(copies), len({record["copy_of"] for record in copies})) == (92, 90, 30)
    for record in copies:
        begin, begin_of_first = (int(record[name].rpartition(":")[2]) for name in ("origin", "copy_of"))
        text, first = (json.loads(corpus[at:].partition(b"\n")[0])["text"] for at in (begin, begin_of_first))
        assert begin_of_first < begin and MARK.search(text)[1] == MARK.search(first)[1]
        assert record["reason"] == ("duplicate" if text == first else "near duplicate")
    found = report.duplicates
    assert (found.count, len(found.largest), found.leaks > 5) == (30, 10, True)
    assert {family.size for family in found.largest} == {4}
    assert {family.origin.partition(":")[0] for family in found.largest} == {"corpus.jsonl"}
    assert len({family.words for family in found.largest}) == 10


def test_exact_sets_only_exact_copies_aside(recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path) -> None:
    report = prepare_rows(replace(recipe, duplicates="exact"), vocabulary, output).report
    assert report.set_aside["duplicate"] == 30 and "near duplicate" not in report.set_aside
    assert report.train.documents + report.held_out.documents == NUM_DOCUMENTS + 60
    assert (report.duplicates.count, report.duplicates.leaks) == (30, 0)


@pytest.mark.parametrize("duplicates", ["keep", "exact"])
def test_copies_that_are_kept_share_a_side_if_leaks_are_to_be_prevented(
    recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path, duplicates: str
) -> None:
    leaking = replace(recipe, duplicates=duplicates)
    prepare_rows(leaking, vocabulary, tmp_path / "leaking")
    train, held_out = marks(tmp_path / "leaking", vocabulary)
    assert len(train & held_out) > 5
    report = prepare_rows(replace(leaking, prevent_leaks=True), vocabulary, tmp_path / "rows").report
    train, held_out = marks(tmp_path / "rows", vocabulary)
    assert not train & held_out and train and held_out
    kept = 4 if duplicates == "keep" else 3
    assert train + held_out == Counter({str(number): kept if number < 30 else 1 for number in range(NUM_DOCUMENTS)})
    assert (report.duplicates.count, report.duplicates.leaks > 5) == (30, True)
    assert report.train.copies + report.held_out.copies == (30 if duplicates == "keep" else 0)
    assert report.train.copies == sum(int(name) < 30 for name in train) * (duplicates == "keep")


def test_rows_do_not_depend_on_the_order_of_the_work_or_on_kills_in_it(
    recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    expected = prepare_rows(recipe, vocabulary, tmp_path / "undisturbed")
    done: list[tuple[str, int]] = []

    def killed(job: SliceJob, numbers: Sequence[int], work: Work = pack_slice) -> None:
        """Does one slice, the last one first, and is killed before the next; packs the last one twice."""
        for number in reversed(numbers):
            if done and done[-1] == (work.__name__, number + 1):
                raise RuntimeError("killed")
            work(job, number)
            done.append((work.__name__, number))
        work(job, 0)

    for _ in range(100):
        try:
            manifest = prepare_rows(recipe, vocabulary, tmp_path / "rows", killed)
            break
        except RuntimeError:
            done.append(("killed", -1))
    num_slices = len(list((tmp_path / "rows" / "set_aside").iterdir()))
    assert num_slices > 4
    work = [name for name, _ in done if name != "killed"]
    assert work == ["survey_slice"] * num_slices + ["pack_slice"] * num_slices  # none was made twice
    assert verify(tmp_path / "rows")["files"] == verify(tmp_path / "undisturbed")["files"]
    assert manifest.report.duplicates == expected.report.duplicates
    assert not partial_of(tmp_path / "rows").exists() and not (tmp_path / "rows" / SURVEYS).exists()


def test_copies_are_not_looked_for_by_default(recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path) -> None:
    works: list[Work] = []

    def noted(job: SliceJob, numbers: Sequence[int], work: Work = pack_slice) -> None:
        works.append(work)
        run_slices(job, numbers, work)

    assert prepare_rows(replace(recipe, duplicates="keep"), vocabulary, output, noted).report.duplicates is None
    assert works == [pack_slice]
    prepare_rows(recipe, vocabulary, output.with_name("others"), noted)
    assert works == [pack_slice, survey_slice, pack_slice]


def test_rows_of_a_version_without_these_settings_are_current(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path
) -> None:
    recipe = replace(recipe, duplicates="keep")
    manifest = prepare_rows(recipe, vocabulary, output)
    path = output / RowsManifest.FILE
    written = json.loads(path.read_text(encoding="utf-8"))
    del written["plan"]["duplicates"], written["plan"]["prevent_leaks"], written["report"]["duplicates"]
    path.write_text(json.dumps(written), encoding="utf-8")
    assert read_rows_manifest(output) == manifest
    assert prepare_rows(recipe, vocabulary, output) == manifest
    for change in ({"duplicates": "near"}, {"duplicates": "exact"}, {"prevent_leaks": True}):
        with pytest.raises(DataError, match="other text or settings"):
            prepare_rows(replace(recipe, **change), vocabulary, output)


def test_a_corpus_that_has_one_side_only_without_its_copies_is_refused_with_a_fraction_that_is_enough(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, english_texts: list[str]
) -> None:
    texts = [changed(english_texts[0], 0.005, random.Random(seed)) for seed in range(20)]
    corpus = output.parent / "corpus.jsonl"
    recipe = replace(recipe, sources=(Source(files=(str(corpus),)),))
    for more in ([], [english_texts[1]]):
        corpus.write_text("\n".join(json.dumps({"text": text}) for text in [*texts, *more]), encoding="utf-8")
        hashes = [text_hash(text) / 2**64 for text in (texts[0], *more)]
        fraction = min(0.99, max(hashes) * 1.0001) if max(hashes) < 0.98 else min(hashes) * 0.9999
        refused = replace(recipe, held_out_fraction=fraction)
        with pytest.raises(DataError, match=f"has {1 + len(more)} document") as raised:
            prepare_rows(refused, vocabulary, output)
        assert not output.exists()
    enough = float(str(raised.value).split("set it to ")[1].split()[0])
    report = prepare_rows(replace(recipe, held_out_fraction=enough), vocabulary, output).report
    assert report.train.documents == report.held_out.documents == 1


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_corpus_whose_copies_or_groups_join_all_documents_is_refused(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, english_texts: list[str], is_grouped: bool
) -> None:
    """With groups, each book has a text of the one before it; without, every document is a near copy of the others."""
    if is_grouped:
        records = [
            {"text": text, "book": f"book {at + more}"} for at, text in enumerate(english_texts[:6]) for more in (0, 1)
        ]
        keys = [text_hash(record["book"]) for record in records]
    else:
        texts = [changed(english_texts[0], 0.005, random.Random(seed)) for seed in range(6)]
        records, keys = [{"text": text} for text in texts], [*map(text_hash, texts)]
    corpus = output.parent / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    joined = replace(
        recipe,
        sources=(Source(files=(str(corpus),), split_field="book" if is_grouped else None),),
        held_out_fraction=(min(keys) + max(keys)) / 2 / 2**64,
        duplicates="keep",
        prevent_leaks=True,
    )
    line = (
        f"^the corpus has {len(records)} documents, and copies or groups put all of them in the same split: .* add doc"
    )
    with pytest.raises(DataError, match=line):
        prepare_rows(joined, vocabulary, output)
    report = prepare_rows(replace(joined, prevent_leaks=False), vocabulary, output).report
    assert report.train.documents + report.held_out.documents == len(records)


def test_copies_in_other_groups_and_in_sources_that_are_held_out_stay_on_one_side(
    recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Two books of each pair have a copy in common; every tenth text has one in a source that is held out."""
    lines = DEMO.read_text(encoding="utf-8").splitlines()[:NUM_DOCUMENTS]
    texts = [f"{json.loads(line)['text'][:2_000]} mark{number}e" for number, line in enumerate(lines)]
    books = [{"text": text, "book": f"book {number}"} for number, text in enumerate(texts)]
    books += [{"text": texts[number], "book": f"book {number + 1}"} for number in range(0, NUM_DOCUMENTS, 2)]
    held_out = [{"text": texts[number]} for number in range(0, NUM_DOCUMENTS, 10)]
    for name, records in (("books", books), ("held_out", held_out)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    sources = (
        Source(files=(str(tmp_path / "books.jsonl"),), split_field="book"),
        Source(files=(str(tmp_path / "held_out.jsonl"),), held_out=True),
    )
    kept = replace(recipe, sources=sources, duplicates="keep", prevent_leaks=True)
    report = prepare_rows(kept, vocabulary, tmp_path / "kept").report
    train, held = marks(tmp_path / "kept", vocabulary)
    pairs = [(str(number), str(number + 1)) for number in range(0, NUM_DOCUMENTS, 2)]
    assert not train & held and len(train) > 5 and len(held) > 5
    assert all((one in held) == (other in held) for one, other in pairs)
    assert all(str(number) in held for number in range(0, NUM_DOCUMENTS, 10))
    assert report.train.documents + report.held_out.documents == len(books) + len(held_out)
    assert report.duplicates.leaks > 0
    report = prepare_rows(replace(kept, duplicates="near", prevent_leaks=False), vocabulary, tmp_path / "near").report
    assert report.train.documents + report.held_out.documents == NUM_DOCUMENTS
    assert report.set_aside == {"duplicate": len(pairs) + len(held_out)}
