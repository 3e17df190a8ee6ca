"""The splits train, val and test as disjoint sets of classes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS
from vicinal.utils.errors import InputError


def splits_by_fraction(names: Sequence[object], fractions: Mapping[str, float], seed: int) -> dict[object, str]:
    """Assign classes to splits at random.

    Args:
        names: The distinct names of the classes, in an order that does not depend on the order of rows.
        fractions: The fraction of the classes for each split, rounded to whole classes; if the sum is below 1, the
            remaining classes get no split.
        seed: The seed of the random order.

    Returns:
        The split of each name that gets one.

    Raises:
        InputError: The fractions are not positive or their sum is above 1, or a split would get no class.
    """
    _check_split_names(fractions)
    if any(not fraction > 0 for fraction in fractions.values()) or sum(fractions.values()) > 1 + 1e-9:
        given = ", ".join(f"{split} {fraction}" for split, fraction in fractions.items())
        raise InputError(f"fractions are {given}; each must be above 0 and their sum at most 1")
    order = np.random.default_rng(seed).permutation(len(names))
    splits = [split for split in SPLITS if split in fractions]
    edges = np.rint(np.cumsum([0.0, *(fractions[split] for split in splits)]) * len(names)).astype(int)
    chosen: dict[object, str] = {}
    for split, low, high in zip(splits, edges, edges[1:], strict=False):
        if low == high:
            raise InputError(
                f"a fraction of {fractions[split]} of {len(names)} classes leaves {split} without any; give more"
            )
        chosen |= {names[position]: split for position in order[low:high]}
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
        others = f", and so are {len(shared) - 1} other classes" if len(shared) > 1 else ""
        warnings.warn(
            f"class {str(name)!r} is in the splits {' and '.join(splits)}{others}: "
            "scores will not tell how unseen classes are found",
            stacklevel=stacklevel + 1,
        )
