"""Splits as disjoint sets of classes, folds of classes, and images of training classes that are held out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from vicinal.data.columns import SPLITS, validate_frame
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError

Name = TypeVar("Name")
Order = Literal["random", "in_order"]
HINT = "or set redivide, which divides all classes again"


def order_classes(names: Sequence[Name], order: Order = "random", seed: int = 0) -> list[Name]:
    """Put classes in the order in which splits and folds take them: `random`, by the seed, or `in_order`, sorted: as
    numbers if every name is an integer, else as text.

    The names are distinct, in an order that does not depend on the order of rows.
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
        InputError: The number of folds or the order is invalid, or the seed is negative.

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
    """Assign classes, as of :func:`order_classes`, to the splits train, val and test, in this order.

    Fractions are rounded to whole classes; if their sum is below 1, the remaining classes get no split.
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
                f"a fraction of {fractions[split]} of {len(names)} classes leaves {split} empty; give more"
            )
        chosen |= dict.fromkeys(ordered[low:high], split)
    return chosen


def splits_by_list(names: Sequence[object], lists: Mapping[str, Sequence[object]]) -> dict[object, str]:
    """Assign classes to splits by lists of their names. 5 and "5" are the same name."""
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


def _first_names(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


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
            "scores will not measure the retrieval of unseen classes",
            stacklevel=stacklevel + 1,
        )


def divide_classes(
    frame: pd.DataFrame,
    fractions: Mapping[str, float] | None,
    classes: Mapping[str, Sequence[str | int]] | None,
    column: str | None,
    seed: int,
    order: Order,
    redivide: bool,
) -> pd.DataFrame:
    """The rows of a valid frame with their new splits; :meth:`Table.split_classes` has the arguments and errors."""
    is_test = (frame["split"] == "test").to_numpy() if "split" in frame and not redivide else np.zeros(len(frame), bool)
    values = frame[column or "label"]
    if len(frame) and is_test.all():
        raise InputError("the table has only the split test, which a division does not change; use another, " + HINT)
    try:
        names = sorted(values[~is_test].dropna().unique().tolist(), key=str)
    except TypeError:
        raise InputError(f"column {column or 'label'!r} holds lists; it must hold text or numbers") from None
    if fractions is not None:
        split_of = splits_by_fraction(names, fractions, seed, order)
    elif classes is not None:
        _check_not_test(classes, names, values[is_test])
        split_of = splits_by_list(names, classes)
    else:
        split_of = {name: name for name in names}
    if is_test.any():
        _check_test_kept(set(split_of.values()), values[is_test], has_splits=fractions is None and classes is None)
    splits = values.map(split_of.get).mask(is_test, "test")
    return _with_splits(frame, splits, is_test)


def hold_out_images(frame: pd.DataFrame, fraction: float, seed: int = 0) -> pd.DataFrame:
    """Make images of each training class the split `val`, for applications whose classes are all known.

    Of each class, `fraction` of the images are held out at random: at least two, as a single image has no match in the
    split; none if fewer than two would be left. With a column `group`, whole groups are held out, at least two of each
    class, as matches within a group are ignored, and a third is left for training. Without splits, all rows are of the
    split `train`.
    """
    if "label" not in frame:
        raise InputError("val_images holds out images of each class, but the table has no labels")
    splits = frame["split"] if "split" in frame else pd.Series("train", index=frame.index)
    if (splits == "val").any():
        raise InputError("val_images makes the split val, but there is one already; leave val_images out")
    rng = np.random.default_rng(seed)
    training = frame[splits == "train"].sample(frac=1, random_state=rng)
    held_out = _held_out_groups(training, fraction, rng) if "group" in frame else _held_out_rows(training, fraction)
    if not len(held_out):
        needed = "groups for val and one" if "group" in frame else "for val and two"
        raise InputError(f"val_images = {fraction} holds out no image: no class has two {needed} for train")
    classes = frame.loc[held_out, "label"].nunique()
    counts = f"{len(held_out):,} images of {classes:,} training classes"
    log(f"held out {counts} for val: scores tell nothing about unseen classes")
    splits = splits.mask(frame.index.isin(held_out), "val")
    return validate_frame(_with_sides(frame, splits).assign(split=splits))


def _held_out_rows(training: pd.DataFrame, fraction: float) -> pd.Index:
    """The first rows of each class."""
    by_class = training.groupby("label", sort=True)["label"]
    size = by_class.transform("size")
    number = _number_held_out(size, fraction)
    return training.index[(by_class.cumcount() < number) & (size - number >= 2)]


def _held_out_groups(training: pd.DataFrame, fraction: float, rng: np.random.Generator) -> pd.Index:
    """The rows of groups at random, each taken if one of its classes needs images and all can spare theirs."""
    groups = _numbered_groups(training["group"])
    sizes = training.groupby([groups, "label"], sort=False).size()
    wanted = _number_held_out(training.groupby("label").size(), fraction).to_dict()
    num_groups = sizes.groupby(level=1).size()
    left, held = training.groupby("label").size().to_dict(), dict.fromkeys(wanted, 0)
    held_groups: dict[object, list[int]] = {name: [] for name in wanted}
    has_enough = set(num_groups.index[num_groups >= 3])
    counts_of: dict[int, list[tuple[object, int]]] = {}
    for group, name, count in zip(*map(sizes.index.get_level_values, (0, 1)), sizes, strict=True):
        counts_of.setdefault(group, []).append((name, count))
    for group in rng.permutation(groups.max(initial=-1) + 1).tolist():
        counts = counts_of[group]
        wants = (held[name] < wanted[name] or len(held_groups[name]) < 2 for name, _ in counts if name in has_enough)
        if any(wants) and all(left[name] - count >= 2 for name, count in counts):
            for name, count in counts:
                left[name], held[name] = left[name] - count, held[name] + count
                held_groups[name].append(group)
    matched = {group for chosen in held_groups.values() if len(chosen) > 1 for group in chosen}
    return training.index[np.isin(groups, list(matched))]


def _numbered_groups(column: pd.Series) -> Integers:
    """The groups as numbers from 0; an image without a group (a negative integer) is a group of its own."""
    codes = pd.factorize(column)[0]
    if pd.api.types.is_integer_dtype(column):
        codes = np.where(column < 0, len(codes) + np.arange(len(codes)), codes)
    return np.unique(codes, return_inverse=True)[1]


def _number_held_out(size: pd.Series, fraction: float) -> pd.Series:
    return (fraction * size).round().clip(lower=2)


def _check_not_test(classes: Mapping[str, Sequence[object]], names: Sequence[object], tested: pd.Series) -> None:
    """Check that no class of the test split is listed for a split."""
    elsewhere = set(map(str, tested)) - set(map(str, names))
    for split, listed in classes.items():
        for name in map(str, listed):
            if name in elsewhere:
                raise InputError(f"{split}: class {name!r} is in the table's own test split; leave it out, {HINT}")


def _check_test_kept(given: set[object], tested: pd.Series, has_splits: bool) -> None:
    """Check that the division neither adds to the test split nor, as a column of splits, takes from it."""
    if "test" in given or (has_splits and not tested.dropna().eq("test").all()):
        raise InputError(
            f"the table has a test split of {len(tested):,} images, which a division does not change; "
            f"divide the others into train and val, {HINT}"
        )


def _with_splits(frame: pd.DataFrame, splits: pd.Series, is_test: Booleans) -> pd.DataFrame:
    chosen = splits.notna()
    if not chosen.all():
        log(f"left out {(~chosen).sum():,} images of classes that were given to no split")
    if is_test.any():
        log(f"the split test stays as it is: {is_test.sum():,} images")
    divided = validate_frame(_with_sides(frame, splits).assign(split=splits)[chosen])
    shared = shared_classes(divided[~is_test[chosen]])
    if shared:
        name, both = next(iter(shared.items()))
        raise InputError(f"class {str(name)!r} would be in {' and '.join(both)}; one class belongs in one split")
    return divided


def _with_sides(frame: pd.DataFrame, splits: pd.Series) -> pd.DataFrame:
    """Make the training images that come into val or test queries and gallery images, if the table has such sides."""
    if not {"split", "is_query", "is_gallery"} <= set(frame.columns):
        return frame
    has_no_side = ~(frame["is_query"] | frame["is_gallery"])
    is_new = has_no_side & (frame["split"] == "train") & splits.isin(["val", "test"])
    return frame.assign(is_query=frame["is_query"] | is_new, is_gallery=frame["is_gallery"] | is_new)
