"""Folds: they divide the documents but no copies and no groups, stratified, as a function of documents and seed."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from longmlm.downstream.documents import LabelledCorpus, units_of
from longmlm.downstream.folds import Fold, fold_of
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import LabelledData, LabelledTask
from longmlm.errors import DataError

TASK = LabelledTask(kind="classification", data=LabelledData(files=("documents.jsonl",)))


def corpus_of(documents: list[LabelledDocument], is_multilabel: bool = False) -> LabelledCorpus:
    labels = sorted({label for document in documents for label in document.labels})
    return LabelledCorpus(tuple(documents), units_of(documents), tuple(labels), is_multilabel, ())


def folds_of(corpus: LabelledCorpus, seed: int = 0, **changed: object) -> list[Fold]:
    task = replace(TASK, **changed)
    return [fold_of(corpus, task, seed, number) for number in range(task.num_folds or 1)]


def document(number: int, label: str = "a", **more: str | None) -> LabelledDocument:
    return replace(LabelledDocument(id=f"d{number}", text=f"Text {number}.", labels=(label,)), **more)


def classes(counts: dict[str, int], with_dev: bool = False) -> LabelledCorpus:
    """Returns a corpus with so many documents of each class; `with_dev` adds a development document."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    dev = [document(len(labels), min(counts), split="dev")] if with_dev else []
    return corpus_of([*(document(number, label) for number, label in enumerate(labels)), *dev])


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
    except DataError:  # too few units, or classes of one group
        assume(False)
    tested = [number for fold in folds for number in (*fold.test, *fold.untested)]
    assert sorted(tested) == list(range(len(corpus.documents)))
    for fold in folds:
        check_parts(corpus, fold)


@settings(deadline=None, max_examples=30)
@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(2, 20), min_size=1),
    num_folds=st.integers(2, 6),
    seed=st.integers(0, 2**63 - 1),
)
def test_classes_and_sizes_of_folds_differ_by_at_most_one(counts: dict[str, int], num_folds: int, seed: int) -> None:
    assume(sum(counts.values()) >= num_folds)
    corpus = classes(counts, with_dev=True)
    folds = folds_of(corpus, seed, num_folds=num_folds)
    tests = [Counter(corpus.documents[number].labels[0] for number in (*fold.test, *fold.untested)) for fold in folds]
    for found in ([test.total() for test in tests], *([test[label] for test in tests] for label in counts)):
        assert max(found) - min(found) <= 1


@settings(deadline=None, max_examples=30)
@example(counts={"a": 2, "b": 7, "c": 10, "d": 29}, fraction=0.484375, seed=2)
@example(counts={"a": 3, "b": 8, "c": 11}, fraction=0.46875, seed=2)
@given(
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 30), min_size=1),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
)
def test_drawn_documents_are_the_fraction_of_each_class_and_leave_every_class(
    counts: dict[str, int], fraction: float, seed: int
) -> None:
    assume(max(counts.values()) > 1)
    corpus = classes(counts, with_dev=True)
    (fold,) = folds_of(corpus, seed, test_fraction=fraction)
    check_parts(corpus, fold)
    assert fold.untested == ()
    tested = Counter(corpus.documents[number].labels[0] for number in fold.test)
    shares = {label: min(fraction * count, count - 1) for label, count in counts.items()}
    for label, share in shares.items():
        assert math.floor(share) <= tested[label] <= math.ceil(share)
    assert abs(tested.total() - max(1, sum(shares.values()))) < 0.5 + 1e-9
    assert {corpus.documents[number].labels[0] for number in fold.train} == {*counts}


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 6), min_size=4, max_size=60), fraction=st.floats(0.1, 0.5))
def test_drawn_groups_of_each_size_are_the_fraction_of_documents(sizes: list[int], fraction: float) -> None:
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    dev = document(len(numbers), split="dev")
    corpus = corpus_of([*(document(n, group=f"{number}") for n, number in enumerate(numbers)), dev])
    (fold,) = folds_of(corpus, test_fraction=fraction)
    check_parts(corpus, fold)
    found = Counter(sizes[numbers[number]] for number in fold.test)
    assert abs(found.total() - fraction * len(numbers)) <= max(sizes)
    for size, count in Counter(sizes).items():
        assert abs(found[size] - fraction * count * size) <= max(sizes) + 1


def test_folds_are_a_function_of_documents_and_seed_whatever_their_order() -> None:
    corpus = classes({"a": 12, "b": 9})
    assert folds_of(corpus, 3, num_folds=3) == folds_of(corpus, 3, num_folds=3)
    assert {fold.test for fold in folds_of(corpus, 3, num_folds=3)}.isdisjoint(
        fold.test for fold in folds_of(corpus, 4, num_folds=3)
    )
    turned = corpus_of([*corpus.documents[::-1]])
    corpora = (corpus, turned)
    names = [[{c.documents[n].id for n in fold.test} for fold in folds_of(c, 3, num_folds=3)] for c in corpora]
    assert names[0] == names[1]


def test_given_splits_are_kept_and_what_is_missing_is_drawn() -> None:
    splits = [*["train"] * 30, *["dev"] * 7, *["test"] * 5]
    documents = [document(n, "ab"[n % 2], split=split) for n, split in enumerate(splits)]
    (fold,) = folds_of(corpus_of(documents), 1)
    assert (fold.train, fold.dev, fold.test) == (tuple(range(30)), tuple(range(30, 37)), tuple(range(37, 42)))
    (fold,) = folds_of(corpus_of([item for item in documents if item.split != "dev"]), 1)
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (27, 3, 5)
    (fold,) = folds_of(corpus_of([item for item in documents if item.split != "test"]), 1)
    assert (len(fold.train), fold.dev, len(fold.test)) == (24, tuple(range(30, 37)), 6)


def test_several_labels_and_spans_are_divided_without_classes() -> None:
    many = [replace(document(n), labels=("a", "b") if n % 3 else ("c",)) for n in range(18)]
    bare = [replace(document(n), labels=()) for n in range(18)]
    for corpus in (corpus_of(many, is_multilabel=True), corpus_of(bare)):
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
        (GROUP, {"num_folds": 2}, "leaves only 1 part:"),
        (GROUP, {}, "test_fraction = 0.2 needs more than 9 documents"),
        (classes({"a": 1, "b": 1}), {}, "test_fraction = 0.2 needs more than 2 documents"),
        (classes({"a": 2}), {}, "dev_fraction = 0.1 needs more than 1 document:"),
        (UNTESTED, {"num_folds": 2}, "fold 0 of 2: no training document has the labels of its 10 test documents"),
    ],
)
def test_too_few_documents_are_refused(corpus: LabelledCorpus, changed: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        folds_of(corpus, **changed)
