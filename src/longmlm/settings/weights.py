"""Weights of sources in a recipe: how often their rows are seen, or their shares of the training tokens."""

import math
from collections.abc import Collection, Mapping

Weight = float | dict[str, float]  # a number, or {"share": a number}
SHARE = "share"
ROUNDING = 1e-6  # by which the sum of shares may differ from 1


def has_shares(weights: Mapping[str, Weight]) -> bool:
    """Returns whether valid weights are shares of the training tokens."""
    return any(isinstance(weight, dict) for weight in weights.values())


def number_of(weight: Weight) -> float:
    """Returns the number in a valid weight."""
    return weight[SHARE] if isinstance(weight, dict) else weight


def check_weights(weights: Mapping[str, Weight]) -> None:
    """Raises ValueError for weights that no corpus can have."""
    are_shares = has_shares(weights)
    for name, weight in weights.items():
        if isinstance(weight, dict) != are_shares or (isinstance(weight, dict) and weight.keys() != {SHARE}):
            raise ValueError(f"weights.{name} must be a number; or write {{ share = NUMBER }} for every source")
        if not 0 < number_of(weight) < math.inf:
            raise ValueError(f"weights.{name} must be positive: to leave a source out of training, hold it out instead")
    if are_shares and abs((total := sum(map(number_of, weights.values()))) - 1) > ROUNDING:
        raise ValueError(f"the shares in weights add up to {total:g}: they must add up to 1")


def weights_problem(weights: Mapping[str, Weight], names: Collection[str]) -> str:
    """Returns what is wrong with weights for sources of these names, which have rows to train on; else nothing."""
    listed = ", ".join(names)
    if len(names) == 1:
        return f"weights are for several sources, and {listed} is the only one to train on: remove weights"
    if unknown := [name for name in weights if name not in names]:
        return f"weights.{unknown[0]} names no source to train on: they are {listed}"
    if has_shares(weights) and (missing := [name for name in names if name not in weights]):
        return f"weights has no share for {missing[0]}: give one to each of {listed}, which add up to 1"
    return ""
