"""Folds of labelled documents: which train, choose and test; a function of the documents, the task and the seed.

Documents with the same text, and those of one group, are a unit, which is never divided. The units of each class, in
the order of a hash of seed and text, are dealt to folds; with 3 folds, the classes a, a, a, a, b, b give

    fold 0: a a     fold 1: a b     fold 2: a b

Where every unit is one document, no two folds differ by more than one document of a class, nor by more than one
document. A share of the documents is drawn at regular intervals of the same order, but never the last documents with a
label.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.errors import DataError, counted
from longmlm.settings.downstream import LabelledTask


@dataclass(frozen=True, slots=True)
class Fold:
    """Numbers of documents, in the order of the corpus.

    Documents in `untested` would be tested, but no training document has their label, since a group has all of them.
    """

    train: tuple[int, ...]
    dev: tuple[int, ...]
    test: tuple[int, ...]
    untested: tuple[int, ...] = ()


Unit = tuple[int, ...]
ROUNDING = 1e-9  # of sums of fractions


def folds_of(corpus: LabelledCorpus, task: LabelledTask, seed: int) -> tuple[Fold, ...]:
    """Returns the task's folds, or one fold for given or drawn test documents.

    What the corpus does not give is drawn: test documents by test_fraction, development documents by dev_fraction of
    the training documents. Raises DataError for too few documents.
    """
    split = _Splitter(corpus, seed)
    given = {
        side: [number for number, document in enumerate(corpus.documents) if document.split == side]
        for side in ("dev", "test")
    }
    pool = set(range(len(corpus.documents))).difference(given["dev"], given["test"])
    if task.num_folds is not None:
        tests = split.dealt(pool, task.num_folds)
    else:
        tests = [given["test"] or split.drawn(pool, task.test_fraction, "test_fraction")]
    folds: list[Fold] = []
    for test in tests:
        rest = pool.difference(test)
        dev = given["dev"] or split.drawn(rest, task.dev_fraction, "dev_fraction")
        train = rest.difference(dev)
        known = set[str]().union(*(corpus.documents[number].all_labels for number in train))
        tested = [number for number in test if corpus.documents[number].all_labels <= known]
        if not tested:
            raise DataError(
                f"fold {len(folds)} of {len(tests)}: no training document has the labels of its "
                f"{counted(len(test), 'test document')}: set fewer folds or another group_field"
            )
        parts = (train, dev, tested, set(test).difference(tested))
        folds.append(Fold(*(tuple(sorted(part)) for part in parts)))
    return tuple(folds)


class _Splitter:
    """The units of a corpus in the order that a seed decides: by class, and at random within it."""

    def __init__(self, corpus: LabelledCorpus, seed: int) -> None:
        self.documents = corpus.documents
        is_divided = any(document.labels for document in self.documents) and not corpus.is_multilabel
        self.classes = [document.labels[0] if is_divided else "" for document in self.documents]

        def order(unit: Unit) -> tuple[bytes, tuple[bytes, bytes]]:
            texts = [(self.documents[number].text, self.documents[number].second_text or "") for number in unit]
            return _hash(seed, self.classes[unit[0]]), min((_hash(seed, one), _hash(seed, two)) for one, two in texts)

        self.units = sorted(units_of(self.documents), key=order)

    def dealt(self, pool: set[int], num_folds: int) -> list[Unit]:
        """Returns a share of the pool for each fold; large units are dealt first, so that small ones fill up."""
        units = [unit for unit in self.units if unit[0] in pool]
        if len(units) < num_folds:
            raise DataError(
                f"num_folds = {num_folds}, but documents that share a text or a group stay together, which leaves "
                f"only {counted(len(units), 'part')}: set fewer folds"
            )
        shares: list[list[int]] = [[] for _ in range(num_folds)]
        counts: dict[str, list[int]] = defaultdict(lambda: [0] * num_folds)
        for unit in sorted(units, key=lambda unit: -len(unit).bit_length()):
            classes = Counter(self.classes[number] for number in unit)

            def filled(fold: int, classes: Counter[str] = classes) -> tuple[int, int]:
                return sum(counts[name][fold] * classes[name] for name in classes), len(shares[fold])

            fold = min(range(num_folds), key=filled)
            shares[fold] += unit
            for name, count in classes.items():
                counts[name][fold] += count
        return [tuple(share) for share in shares]

    def drawn(self, pool: set[int], fraction: float, setting: str) -> list[int]:
        """Returns about this fraction of the pool, at least one unit; every label stays in the rest."""
        units = [unit for unit in self.units if unit[0] in pool]
        remaining = self._labels_of(pool)
        drawn: list[int] = []

        def is_spare(unit: Unit) -> bool:
            labels = self._labels_of(unit)
            return len(drawn) + len(unit) < len(pool) and all(remaining[name] > labels[name] for name in labels)

        due = 0.0
        for unit in units:
            due += max(fraction, 1 / len(pool)) * len(unit)
            if len(drawn) + len(unit) / 2 <= due + ROUNDING and is_spare(unit):
                drawn += unit
                remaining -= self._labels_of(unit)
        drawn = drawn or list(min(filter(is_spare, units), key=len, default=()))
        if not drawn:
            raise DataError(
                f"{setting} = {fraction:g} needs more than {counted(len(pool), 'document')}: each label needs a second "
                "document, with another text and group"
            )
        return drawn

    def _labels_of(self, numbers: Iterable[int]) -> Counter[str]:
        return Counter(label for number in numbers for label in self.documents[number].all_labels)


def _hash(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=16).digest()


def units_of(documents: Sequence[LabelledDocument]) -> Iterable[Unit]:
    """Returns the numbers of the documents that share a text or a group, directly or through others."""
    parents = list(range(len(documents)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    first: dict[tuple[str, ...], int] = {}
    for number, document in enumerate(documents):
        for key in document.keys:
            parents[root(number)] = root(first.setdefault(key, number))
    units: dict[int, list[int]] = defaultdict(list)
    for number in range(len(documents)):
        units[root(number)].append(number)
    return [tuple(unit) for unit in units.values()]
