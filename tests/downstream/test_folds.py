"""Folds: they divide the documents but no copies and no groups, stratified, as a function of documents and seed."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longmlm.downstream.artifacts import Target
from longmlm.downstream.documents import LabelledCorpus, units_of
from longmlm.downstream.folds import Fold, fold_of
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import LabelledData, LabelledTask
from longmlm.errors import DataError

TASK = LabelledTask(kind="classification", data=LabelledData(files=("documents.jsonl",)))


def corpus_of(documents: list[LabelledDocument], target: Target = "label") -> LabelledCorpus:
    labels = sorted({label for document in documents for label in document.labels})
    return LabelledCorpus(tuple(documents), units_of(documents), tuple(labels), target, ())


def folds_of(corpus: LabelledCorpus, seed: int = 0, **changed: object) -> list[Fold]:
    task = replace(TASK, **changed)
    return [fold_of(corpus, task, seed, number) for number in (range(task.num_folds) if task.num_folds else [None])]


def document(number: int, label: str = "a", **more: str | None) -> LabelledDocument:
    return replace(LabelledDocument(id=f"d{number}", text=f"Text {number}.", labels=(label,)), **more)


def classes(counts: dict[str, int]) -> LabelledCorpus:
    """Returns a corpus with so many documents of each class, and a development document."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    dev = document(len(labels), min(counts), split="dev")
    return corpus_of([*(document(number, label) for number, label in enumerate(labels)), dev])


def check_parts(corpus: LabelledCorpus, fold: Fold) -> None:
    """Checks that a fold has every document once, and no copies or groups on two sides."""
    parts = (fold.train, fold.dev, (*fold.test, *fold.untested))
    assert sorted(number for part in parts for number in part) == list(range(len(corpus.documents)))
    assert all(part for part in (fold.train, fold.dev, fold.test))
    sides = [{key for number in part for key in corpus.documents[number].keys} for part in parts]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    trained = {label for number in fold.train for label in corpus.documents[number].labels}
    assert all({*corpus.documents[number].labels} <= trained for number in fold.test)
    assert not any({*corpus.documents[number].labels} <= trained for number in fold.untested)


# Class, group and text of each document; documents with the same text are copies.
MIXED = st.lists(
    st.tuples(
        st.sampled_from("aaabbcd"),
        st.one_of(st.none(), st.sampled_from("uvwxyz")),
        st.one_of(st.none(), st.sampled_from([f"Copy {number}." for number in range(20)])),
    ),
    min_size=12,
    max_size=40,
)


@settings(deadline=None, max_examples=15)
@given(mixed=MIXED, num_folds=st.integers(2, 4), seed=st.integers(0, 2**63 - 1))
def test_folds_test_every_document_once_and_divide_neither_copies_nor_groups(
    mixed: list[tuple[str, str | None, str | None]], num_folds: int, seed: int
) -> None:
    numbered = enumerate(mixed)
    corpus = corpus_of([document(n, label, group=group, text=text or f"{n}") for n, (label, group, text) in numbered])
    try:
        folds = folds_of(corpus, seed, num_folds=num_folds)
        [drawn] = folds_of(corpus, seed)
    except DataError:  # too few units, or classes of one group
        assume(False)
    for fold in (*folds, drawn):
        check_parts(corpus, fold)
    tested = [number for fold in folds for number in (*fold.test, *fold.untested)]
    assert sorted(tested) == list(range(len(corpus.documents)))


@settings(deadline=None, max_examples=20)
@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(2, 30), min_size=1),
    num_parts=st.integers(2, 10),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_class_has_its_share_of_folds_and_of_drawn_documents(
    counts: dict[str, int], num_parts: int, seed: int
) -> None:
    assume(max(counts.values()) >= num_parts)
    corpus, total = classes(counts), sum(counts.values())
    folds = folds_of(corpus, seed, num_folds=num_parts)
    [drawn] = folds_of(corpus, seed, test_fraction=1 / num_parts)
    assert {corpus.documents[number].labels[0] for number in drawn.train} == {*counts}, "every class is trained"
    for numbers in (drawn.test, *((*fold.test, *fold.untested) for fold in folds)):
        tested = Counter(corpus.documents[number].labels[0] for number in numbers)
        assert all(abs(tested[label] - count / num_parts) <= 1 for label, count in counts.items())
        assert abs(tested.total() - total / num_parts) <= len(counts)


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 6), min_size=12, max_size=60), fraction=st.sampled_from([0.1, 0.25, 0.3, 0.5]))
def test_drawn_groups_are_the_fraction_of_documents(sizes: list[int], fraction: float) -> None:
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    dev = document(len(numbers), split="dev")
    corpus = corpus_of([*(document(n, group=f"{number}") for n, number in enumerate(numbers)), dev])
    [fold] = folds_of(corpus, test_fraction=fraction)
    check_parts(corpus, fold)
    assert abs(len(fold.test) - fraction * len(numbers)) <= max(sizes)


@pytest.mark.parametrize("fraction", [0.01, 0.02, 0.03, 0.98])
def test_a_small_fraction_draws_few_documents(fraction: float) -> None:
    [fold] = folds_of(classes({"a": 600, "b": 400}), test_fraction=fraction)
    assert abs(len(fold.test) - 1000 * fraction) <= 6


def test_folds_are_a_function_of_documents_and_seed_whatever_their_order() -> None:
    corpus = classes({"a": 12, "b": 9})
    corpora = (corpus, corpus, corpus_of([*corpus.documents[::-1]]))
    names = [[{c.documents[n].id for n in fold.test} for fold in folds_of(c, 3, num_folds=3)] for c in corpora]
    assert names[0] == names[1] == names[2]
    assert {fold.test for fold in folds_of(corpus, 3, num_folds=3)}.isdisjoint(
        fold.test for fold in folds_of(corpus, 4, num_folds=3)
    )


def test_given_splits_are_kept_and_what_is_missing_is_drawn() -> None:
    splits = [*["train"] * 30, *["dev"] * 7, *["test"] * 5]
    documents = [document(n, "ab"[n % 2], split=split) for n, split in enumerate(splits)]
    (fold,) = folds_of(corpus_of(documents), 1)
    assert (fold.train, fold.dev, fold.test) == (tuple(range(30)), tuple(range(30, 37)), tuple(range(37, 42)))
    for split, sizes in (("dev", (27, 3, 5)), ("test", (24, 7, 6))):
        (fold,) = folds_of(corpus_of([item for item in documents if item.split != split]), 1)
        assert (len(fold.train), len(fold.dev), len(fold.test)) == sizes
    (fold,) = folds_of(corpus_of([*documents, document(42, "new", split="test")]), 1)
    assert fold.untested == (42,), "no training document has its label"


def test_several_labels_and_spans_are_divided_without_classes() -> None:
    many = [replace(document(n), labels=("a", "b") if n % 3 else ("c",)) for n in range(18)]
    bare = [replace(document(n), labels=()) for n in range(18)]
    for corpus in (corpus_of(many, "labels"), corpus_of(bare, "spans")):
        folds = folds_of(corpus, num_folds=3)
        assert [len(fold.test) for fold in folds] == [6] * 3
        for fold in folds:
            check_parts(corpus, fold)


def test_a_class_of_one_group_is_trained_but_never_tested() -> None:
    documents = [document(n, "ab"[n % 2]) for n in range(20)]
    corpus = corpus_of([*documents, *(document(20 + n, "lone", group="Poe") for n in range(3))])
    assert sorted(fold.untested for fold in folds_of(corpus, num_folds=4)) == [(), (), (), (20, 21, 22)]
    (fold,) = folds_of(corpus)
    assert {20, 21, 22} <= {*fold.train}


GROUP = corpus_of([document(n, group="g") for n in range(9)])
OF_A_CLASS = [document(n, "ab"[n % 2], group="ab"[n % 2]) for n in range(20)]
UNTESTED = corpus_of([*OF_A_CLASS, *(document(20 + n, "a", split="dev") for n in range(3))])


@pytest.mark.parametrize(
    ("corpus", "changed", "message"),
    [
        (classes({"a": 2, "b": 2}), {"num_folds": 5}, "num_folds = 5, but .* leaves only 4 parts:"),
        (GROUP, {}, "test_fraction = 0.2 needs more than 9 documents"),
        (classes({"a": 1, "b": 1}), {}, "test_fraction = 0.2 needs more than 2 documents"),
        (corpus_of([document(0), document(1)]), {}, "dev_fraction = 0.1 needs more than 1 document:"),
        (UNTESTED, {"num_folds": 2}, "fold 0 of 2: no training document has the labels of its 10 test documents"),
    ],
)
def test_too_few_documents_are_refused(corpus: LabelledCorpus, changed: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        folds_of(corpus, **changed)
