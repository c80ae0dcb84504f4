"""Folds of labelled documents: which train, choose and test; a function of the documents, the task and the seed.

Documents with the same text, and those of one group, are a unit, which is never divided. A share of the documents is
drawn as some of many folds, but never the last documents with a label.
"""

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import LabelledTask
from longmlm.errors import DataError, counted

FINEST = 20  # parts of which a share has some


@dataclass(frozen=True, slots=True)
class Fold:
    """Numbers of documents, in the order of the corpus.

    Documents in `untested` would be tested, but no training document has all of their labels.
    """

    train: tuple[int, ...]
    dev: tuple[int, ...]
    test: tuple[int, ...]
    untested: tuple[int, ...] = ()


def fold_of(corpus: LabelledCorpus, task: LabelledTask, seed: int, number: int) -> Fold:
    """Returns one of the task's folds; the only one, 0, has given or drawn test documents.

    What the corpus does not give is drawn: test documents by test_fraction, development documents by dev_fraction of
    the training documents. Raises DataError for too few documents.
    """
    documents = corpus.documents
    given = {side: {n for n, one in enumerate(documents) if one.split == side} for side in ("dev", "test")}
    pool = set(range(len(documents))).difference(given["dev"], given["test"])
    splitter = _Splitter(corpus, seed)
    if task.num_folds is not None:
        test = splitter.folds(pool, task.num_folds)[number]
    else:
        test = given["test"] or splitter.drawn(pool, task.test_fraction, "test_fraction")
    rest = pool.difference(test)
    dev = given["dev"] or splitter.drawn(rest, task.dev_fraction, "dev_fraction")
    train = rest.difference(dev)
    known = _labels_of(documents[n] for n in train)
    tested = {n for n in test if documents[n].all_labels <= known.keys()}
    if not tested:
        raise DataError(
            f"fold {number} of {task.num_folds or 1}: no training document has the labels of its "
            f"{counted(len(test), 'test document')}: set fewer folds or another group_field"
        )
    parts = (train, dev, tested, test.difference(tested))
    return Fold(*(tuple(sorted(part)) for part in parts))


class _Splitter:
    """Divides documents at random, whole units together, each class in proportion if documents have one."""

    def __init__(self, corpus: LabelledCorpus, seed: int) -> None:
        self.documents, self.seed = corpus.documents, seed % 2**32
        has_class = any(one.labels for one in self.documents) and not corpus.is_multilabel
        self.classes = np.array([one.labels[0] if has_class else "" for one in self.documents])
        rank = {text: number for number, text in enumerate(sorted({one.text for one in self.documents}))}
        self.ranks = np.array([rank[one.text] for one in self.documents])  # folds do not depend on the order of records
        lowest = np.full(len(self.documents), len(self.documents))
        np.minimum.at(lowest, np.array(corpus.units), self.ranks)
        self.units = lowest[np.array(corpus.units)]

    def folds(self, pool: set[int], num_folds: int) -> list[set[int]]:
        """Returns the pool in disjoint parts; raises DataError if it has too few units."""
        numbers = np.array(sorted(pool, key=lambda number: self.ranks[number]))
        units, classes = self.units[numbers], self.classes[numbers]
        if (num_units := len({*units})) < num_folds:
            raise DataError(
                f"num_folds = {num_folds}, but documents that share a text or a group stay together, which leaves "
                f"only {counted(num_units, 'part')}: set fewer folds"
            )
        is_rare = max(Counter(classes).values()) < num_folds  # which StratifiedGroupKFold refuses
        folds = StratifiedGroupKFold(num_folds, shuffle=True, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")
            divided = list(folds.split(numbers, np.zeros(len(numbers)) if is_rare else classes, units))
        return [{*numbers[part].tolist()} for _, part in divided]

    def drawn(self, pool: set[int], fraction: float, setting: str) -> set[int]:
        """Returns about this fraction of the pool, at least one unit; every label stays in the rest."""
        num_units = len({*self.units[[*pool]]})
        share = Fraction(fraction).limit_denominator(FINEST)
        largest_class = max(Counter(self.classes[[*pool]].tolist()).values())
        num_parts = min(max(share.denominator, round(1 / fraction)), num_units, largest_class)
        drawn: set[int] = set()
        for part in self.folds(pool, num_parts)[:-1] if num_parts > 1 else ():
            if not drawn or len(drawn) + len(part) / 2 <= fraction * len(pool):
                drawn |= part
        left = _labels_of(self.documents[n] for n in pool.difference(drawn))
        lost = {self.units[n] for n in drawn if not self.documents[n].all_labels <= left.keys()}
        drawn = {n for n in drawn if self.units[n] not in lost}
        if not drawn:
            raise DataError(
                f"{setting} = {fraction:g} needs more than {counted(len(pool), 'document')}: each label needs a second "
                "document, with another text and group"
            )
        return drawn


def _labels_of(documents: Iterable[LabelledDocument]) -> Counter[str]:
    return Counter(label for document in documents for label in document.all_labels)
