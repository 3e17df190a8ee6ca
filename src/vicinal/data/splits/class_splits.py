"""The splits train, val and test as disjoint sets of classes, and folds of classes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS
from vicinal.utils.console import counted
from vicinal.utils.errors import InputError

Name = TypeVar("Name")
Order = Literal["random", "in_order"]


def order_classes(names: Sequence[Name], order: Order = "random", seed: int = 0) -> list[Name]:
    """Put classes in the order in which splits and folds take them.

    Args:
        names: The distinct names, in an order that does not depend on the order of rows, such as
            :attr:`Table.classes <vicinal.data.Table.classes>`.
        order: `random`, by the seed; `in_order`, sorted: as numbers if every name is an integer, else as text.
        seed: The seed of the random order; not negative.

    Raises:
        InputError: The order is unknown, or the seed is negative.

    Example:
        >>> order_classes(["10", "9", "1"], "in_order")
        ['1', '9', '10']
    """
    if order not in ("random", "in_order"):
        raise InputError(f"order is {order!r}; it can be random or in_order")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    if order == "random":
        return [names[position] for position in np.random.default_rng(seed).permutation(len(names))]
    is_numeric = all(re.fullmatch("-?[0-9]+", str(name)) for name in names)
    return sorted(names, key=lambda name: (int(str(name)) if is_numeric else 0, str(name)))


def class_folds(names: Sequence[Name], num_folds: int, seed: int = 0, order: Order = "random") -> list[list[Name]]:
    """Divide classes into folds for cross-validation, whose numbers of classes differ by one at most.

    Args:
        names: The distinct names, in an order that does not depend on the order of rows, such as
            :attr:`Table.classes <vicinal.data.Table.classes>`.
        num_folds: The number of folds, at least 2 and at most the number of classes.
        seed: The seed of the random order.
        order: `random`, by the seed; `in_order`, consecutive classes, sorted as numbers if all names are integers, else
            as text, so that two folds are the first and the second half.

    Raises:
        InputError: The number of folds or the order is impossible, or the seed is negative.

    Example:
        >>> class_folds([1, 2, 3, 4, 5], 2, order="in_order")
        [[1, 2, 3], [4, 5]]
    """
    if not 2 <= num_folds <= len(names):
        raise InputError(f"{num_folds} folds of {len(names)} classes; give 2 folds or more, each of a class or more")
    ordered = order_classes(names, order, seed)
    edges = [-(-len(ordered) * fold // num_folds) for fold in range(num_folds + 1)]
    return [ordered[low:high] for low, high in pairwise(edges)]


def splits_by_fraction(
    names: Sequence[object], fractions: Mapping[str, float], seed: int, order: Order = "random"
) -> dict[object, str]:
    """Assign classes to the splits train, val and test, in this order.

    Args:
        names: The distinct names of the classes, as in :func:`order_classes`.
        fractions: The fraction of the classes for each split, rounded to whole classes; if the sum is below 1, the
            remaining classes get no split.
        seed: The seed of the random order.
        order: As in :func:`order_classes`.

    Returns:
        The split of each name that gets one.

    Raises:
        InputError: The fractions are not positive or their sum is above 1, or a split would get no class.
    """
    _check_split_names(fractions)
    if any(not fraction > 0 for fraction in fractions.values()) or sum(fractions.values()) > 1 + 1e-9:
        given = ", ".join(f"{split} {fraction}" for split, fraction in fractions.items())
        raise InputError(f"fractions are {given}; each must be above 0 and their sum at most 1")
    ordered = order_classes(names, order, seed)
    splits = [split for split in SPLITS if split in fractions]
    edges = np.rint(np.cumsum([0.0, *(fractions[split] for split in splits)]) * len(names)).astype(int)
    chosen: dict[object, str] = {}
    for split, low, high in zip(splits, edges, edges[1:], strict=False):
        if low == high:
            raise InputError(
                f"a fraction of {fractions[split]} of {len(names)} classes leaves {split} without any; give more"
            )
        chosen |= dict.fromkeys(ordered[low:high], split)
    return chosen


def splits_by_list(names: Sequence[object], lists: Mapping[str, Sequence[object]]) -> dict[object, str]:
    """Assign classes to splits by lists of their names. 5 and "5" are the same name.

    Raises:
        InputError: A name is unknown or is listed for two splits.
    """
    _check_split_names(lists)
    known = {str(name): name for name in names}
    chosen: dict[object, str] = {}
    for split, listed in lists.items():
        for name in map(str, listed):
            if name not in known:
                raise InputError(f"{split}: no class {name!r}; there are {_first_names(names)}")
            other = chosen.setdefault(known[name], split)
            if other != split:
                raise InputError(f"class {name!r} is listed for {other} and {split}; a class has one split")
    return chosen


def _check_split_names(splits: Mapping[str, object]) -> None:
    unknown = [split for split in splits if split not in SPLITS]
    if unknown or not splits:
        raise InputError(f"split {', '.join(map(repr, unknown)) or 'missing'}: the splits are train, val and test")


def _first_names(names: Sequence[object], limit: int = 8) -> str:
    return ", ".join(map(str, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def shared_classes(frame: pd.DataFrame) -> dict[object, list[str]]:
    """The classes that are in more than one split, each with its splits."""
    if not {"label", "split"} <= set(frame.columns):
        return {}
    pairs = frame[["label", "split"]].drop_duplicates()
    pairs = pairs[pairs["label"].duplicated(keep=False)]
    by_class = pairs.groupby("label", sort=True)["split"]
    return {name: [split for split in SPLITS if split in set(splits)] for name, splits in by_class}


def warn_of_shared_classes(frame: pd.DataFrame, stacklevel: int) -> None:
    """Warn if a class is in two splits: metrics on one would then include classes seen in the other."""
    shared = shared_classes(frame)
    if shared:
        name, splits = next(iter(shared.items()))
        verb, more = "is" if len(shared) == 2 else "are", counted(len(shared) - 1, "other class", "other classes")
        others = f", and so {verb} {more}" if len(shared) > 1 else ""
        warnings.warn(
            f"class {str(name)!r} is in the splits {' and '.join(splits)}{others}: "
            "scores will not tell how unseen classes are found",
            stacklevel=stacklevel + 1,
        )
