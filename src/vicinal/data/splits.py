"""Train, val and test as sets of classes: none may share a class with another."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS
from vicinal.errors import InputError


def splits_by_share(names: Sequence[object], shares: Mapping[str, float], seed: int) -> dict[object, str]:
    """Deal the names out at random: to each split its share of them, rounded.

    Args:
        names: the distinct names, in an order that does not depend on the rows'.
        shares: split -> fraction of the names; what is missing to 1 goes to no split.
        seed: of the order in which the names are dealt.

    Raises:
        InputError: shares that are negative or add up to more than 1, or too few names for a split to get any.
    """
    _refuse_other_splits(shares)
    if any(not share > 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
        given = ", ".join(f"{split} {share}" for split, share in shares.items())
        raise InputError(f"shares are {given}; each must be above 0 and their sum at most 1")
    order = np.random.default_rng(seed).permutation(len(names))
    wanted = [split for split in SPLITS if split in shares]
    edges = np.rint(np.cumsum([0.0, *(shares[split] for split in wanted)]) * len(names)).astype(int)
    for split, low, high in zip(wanted, edges, edges[1:], strict=False):
        if low == high:
            raise InputError(
                f"a share of {shares[split]} of {len(names)} classes leaves {split} without any; give more"
            )
    return {
        names[position]: split
        for split, low, high in zip(wanted, edges, edges[1:], strict=False)
        for position in order[low:high]
    }


def splits_by_list(names: Sequence[object], lists: Mapping[str, Sequence[object]]) -> dict[object, str]:
    """Turn lists of names into name -> split; 5 and "5" mean the same name.

    Raises:
        InputError: a name that is not there, or that stands in two lists.
    """
    _refuse_other_splits(lists)
    known = {str(name): name for name in names}
    chosen: dict[object, str] = {}
    for split, listed in lists.items():
        for name in map(str, listed):
            if name not in known:
                raise InputError(f"{split}: no class {name!r}; there are {_some(names)}")
            if chosen.get(known[name], split) != split:
                raise InputError(f"class {name!r} is listed for {chosen[known[name]]} and {split}; one split a class")
            chosen[known[name]] = split
    return chosen


def _refuse_other_splits(splits: Mapping[str, object]) -> None:
    others = [split for split in splits if split not in SPLITS]
    if others or not splits:
        raise InputError(f"split {', '.join(map(repr, others)) or 'missing'}: the splits are train, val and test")


def _some(names: Sequence[object], limit: int = 8) -> str:
    return ", ".join(map(str, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def shared_classes(frame: pd.DataFrame) -> dict[object, list[str]]:
    """The classes that stand in more than one split, each with its splits."""
    if not {"label", "split"} <= set(frame.columns):
        return {}
    pairs = frame[["label", "split"]].drop_duplicates()
    pairs = pairs[pairs["label"].duplicated(keep=False)]
    by_class = pairs.groupby("label", sort=True)["split"]
    return {name: [split for split in SPLITS if split in set(splits)] for name, splits in by_class}


def warn_of_shared_classes(frame: pd.DataFrame, stacklevel: int) -> None:
    """Warn when the scores on a split would count classes seen in another."""
    shared = shared_classes(frame)
    if shared:
        name, splits = next(iter(shared.items()))
        others = f", and so are {len(shared) - 1} other classes" if len(shared) > 1 else ""
        warnings.warn(
            f"class {str(name)!r} is in the splits {' and '.join(splits)}{others}: "
            "scores will not tell how unseen classes are found",
            stacklevel=stacklevel + 1,
        )
