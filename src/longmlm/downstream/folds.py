"""Folds of labelled documents: which train, choose and test, by scikit-learn's splitters.

Documents with the same text, and those of one group, are a unit, which is never divided.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.settings import LabelledTask
from longmlm.errors import DataError, counted

MAX_PARTS = 20  # of which some are drawn for a fraction


@dataclass(frozen=True, slots=True)
class Fold:
    """Numbers of documents, in the order of the corpus.

    Documents in `untested` would be tested, but no training document has all of their labels.
    """

    train: tuple[int, ...]
    dev: tuple[int, ...]
    test: tuple[int, ...]
    untested: tuple[int, ...] = ()


def fold_of(corpus: LabelledCorpus, task: LabelledTask, seed: int, number: int | None) -> Fold:
    """Returns one of the task's folds; without cross-validation the only one, None.

    What the corpus does not give is drawn: test documents by test_fraction, development documents by dev_fraction of
    the training documents. Raises DataError for too few documents.
    """
    documents = corpus.documents
    given = {side: {n for n, one in enumerate(documents) if one.split == side} for side in ("dev", "test")}
    pool = set(range(len(documents))).difference(given["dev"], given["test"])
    if number is not None and task.num_folds is not None:
        num_units = len({corpus.units[number] for number in pool})
        if num_units < task.num_folds:
            raise DataError(
                f"num_folds = {task.num_folds}, but documents that share a text or a group stay together, which "
                f"leaves only {counted(num_units, 'part')}: set fewer folds"
            )
        test = {*parts_of(corpus, pool, task.num_folds, seed)[number]}
    else:
        test = given["test"] or drawn(corpus, pool, task.test_fraction, "test_fraction", seed)
    rest = pool.difference(test)
    dev = given["dev"] or drawn(corpus, rest, task.dev_fraction, "dev_fraction", seed)
    train = rest.difference(dev)
    known = _labels_of(corpus, train)
    tested = {n for n in test if documents[n].all_labels <= known.keys()}
    if not tested:
        raise DataError(
            f"fold {number or 0} of {task.num_folds or 1}: no training document has the labels of its "
            f"{counted(len(test), 'test document')}: set fewer folds or another group_field"
        )
    parts = (train, dev, tested, test.difference(tested))
    return Fold(*(tuple(sorted(part)) for part in parts))


def parts_of(corpus: LabelledCorpus, pool: Iterable[int], num_parts: int, seed: int) -> list[list[int]]:
    """Returns documents in parts that are alike in size and, if each has one label, in its shares; no unit is divided.

    The parts are the same in whichever order the documents are read.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    numbers = sorted(pool, key=lambda number: corpus.documents[number].text)
    places = dict[int, int]()  # of units, in this order
    units = [places.setdefault(corpus.units[number], len(places)) for number in numbers]
    classes = [corpus.documents[number].labels for number in numbers] if corpus.target == "label" else []
    names = sorted({*classes})
    targets = [names.index(one) for one in classes]
    if max(Counter(targets).values(), default=0) < num_parts:  # too few of any class for each part to have one
        targets = [0] * len(numbers)
    options = {"shuffle": True, "random_state": seed % 2**32}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        if len(places) == len(numbers):  # the same with groups takes time that grows with their number
            split = StratifiedKFold(num_parts, **options).split(numbers, targets)
        else:
            split = StratifiedGroupKFold(num_parts, **options).split(numbers, targets, units)
        return [[numbers[place] for place in test] for _, test in split]


def drawn(corpus: LabelledCorpus, pool: set[int], fraction: float, setting: str, seed: int) -> set[int]:
    """Returns about this fraction of the pool, at least one unit; every label stays in the rest."""
    share = Fraction(fraction).limit_denominator(MAX_PARTS)
    num_units = len({corpus.units[number] for number in pool})
    num_parts = max(2, min(max(share.denominator, round(1 / min(fraction, 1 - fraction))), num_units))
    parts = parts_of(corpus, pool, num_parts, seed) if num_units > 1 else []
    num_drawn = min(max(1, round(fraction * num_parts)), num_parts - 1)
    left, found = _labels_of(corpus, pool), set[int]()
    for place, part in enumerate(parts):
        for unit in _units(corpus, part):
            own = _labels_of(corpus, unit)
            if (place < num_drawn or not found) and all(left[label] > count for label, count in own.items()):
                found.update(unit)
                left -= own
    if not found:
        raise DataError(
            f"{setting} = {fraction:g} needs more than {counted(len(pool), 'document')}: each label needs a second "
            "document, with another text and group"
        )
    return found


def _units(corpus: LabelledCorpus, numbers: Sequence[int]) -> list[list[int]]:
    units: dict[int, list[int]] = {}
    for number in numbers:
        units.setdefault(corpus.units[number], []).append(number)
    return [*units.values()]


def _labels_of(corpus: LabelledCorpus, numbers: Iterable[int]) -> Counter[str]:
    return Counter(label for number in numbers for label in corpus.documents[number].all_labels)
