"""Folds of labelled documents: which train, choose and test; a function of the documents, the task and the seed.

Documents with the same text, and those of one group, are a unit, which is never divided.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.records import LabelledDocument
from longmlm.downstream.settings import LabelledTask
from longmlm.errors import DataError, counted


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
    known = _labels_of(documents, train)
    tested = {n for n in test if documents[n].all_labels <= known.keys()}
    if not tested:
        raise DataError(
            f"fold {number} of {task.num_folds or 1}: no training document has the labels of its "
            f"{counted(len(test), 'test document')}: set fewer folds or another group_field"
        )
    parts = (train, dev, tested, test.difference(tested))
    return Fold(*(tuple(sorted(part)) for part in parts))


class _Splitter:
    """Divides documents at random, whole units together, each class in proportion if documents have one.

    Units are placed one by one, the largest first, and those of a class after each other. If all are single documents,
    folds differ by at most one in the documents of a class, and in total; a class's drawn share is rounded up or down.
    """

    def __init__(self, corpus: LabelledCorpus, seed: int) -> None:
        self.documents, self.units, self.seed = corpus.documents, corpus.units, seed
        has_class = any(one.labels for one in self.documents) and not corpus.is_multilabel
        self.classes = np.array([one.labels[0] if has_class else "" for one in self.documents])

    def folds(self, pool: set[int], num_folds: int) -> list[set[int]]:
        """Returns the pool in disjoint parts; raises DataError if it has too few units."""
        units, counts = self._shuffled(pool)
        if len(units) < num_folds:
            raise DataError(
                f"num_folds = {num_folds}, but documents that share a text or a group stay together, which leaves "
                f"only {counted(len(units), 'part')}: set fewer folds"
            )
        folds, sizes = [set[int]() for _ in range(num_folds)], np.zeros((num_folds, counts.shape[1]))
        for unit, in_classes in zip(units, counts, strict=True):
            smallest = np.lexsort((sizes.sum(axis=1), sizes @ in_classes))[0]  # in the unit's classes, then in all
            folds[smallest].update(unit)
            sizes[smallest] += in_classes
        return folds

    def drawn(self, pool: set[int], fraction: float, setting: str) -> set[int]:
        """Returns about this fraction of the pool, at least one unit; every label stays in the rest."""
        units, counts = self._shuffled(pool)
        seen, left = counts.cumsum(axis=0), _labels_of(self.documents, pool)
        shares = np.minimum(fraction * seen[-1], seen[-1] - 1)
        wanted = np.floor(shares)
        num_more = max(1, round(shares.sum())) - int(wanted.sum())  # of the classes with the largest remainders
        wanted[np.argsort(wanted - shares, kind="stable")[:num_more]] += 1
        drawn, taken = set[int](), np.zeros(len(wanted))

        def is_spare(unit: list[int]) -> bool:
            return all(left[label] > number for label, number in _labels_of(self.documents, unit).items())

        for unit, in_classes, target in zip(units, counts, seen * wanted / seen[-1], strict=True):
            if 2 * (target - taken) @ in_classes >= in_classes @ in_classes and is_spare(unit):  # gets closer to it
                drawn.update(unit)
                taken += in_classes
                left -= _labels_of(self.documents, unit)
        if not drawn and not (drawn := {*next(filter(is_spare, reversed(units)), ())}):
            raise DataError(
                f"{setting} = {fraction:g} needs more than {counted(len(pool), 'document')}: each label needs a second "
                "document, with another text and group"
            )
        return drawn

    def _shuffled(self, pool: set[int]) -> tuple[list[list[int]], Int64[np.ndarray, "units classes"]]:
        """Returns the units of the pool, and how many documents of each class they have."""
        units = defaultdict[int, list[int]](list)
        for number in sorted(pool, key=lambda number: self.documents[number].text):  # in whichever order they are read
            units[self.units[number]].append(number)
        shuffled = [*units.values()]
        np.random.default_rng(self.seed).shuffle(shuffled)
        shuffled.sort(key=lambda unit: (-len(unit), self.classes[unit[0]]))
        classes = np.unique(self.classes[[*pool]])
        return shuffled, np.array([(self.classes[unit, None] == classes).sum(axis=0) for unit in shuffled])


def _labels_of(documents: Sequence[LabelledDocument], numbers: Iterable[int]) -> Counter[str]:
    return Counter(label for number in numbers for label in documents[number].all_labels)
