"""Dividing the classes of a table into splits, without touching its test split, or images of its training classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vicinal.data.columns import validate_frame
from vicinal.data.splits.class_splits import Order, shared_classes, splits_by_fraction, splits_by_list
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

HINT = "or set redivide, which divides all classes anew"


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
        raise InputError("the table has only the split test, which a division leaves as it is; take another, " + HINT)
    names = sorted(values[~is_test].dropna().unique().tolist(), key=str)
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

    Of each class, at random, so many images as the fraction says, but two or more, as one has no match in the split;
    none if fewer than two would be left. With a column `group`, whole groups, which are then in one split each: of each
    class two or more, as matches within a group are ignored, and a third is left for training.

    Args:
        frame: a valid frame with labels; without splits, all its rows are of the split `train`.
        fraction: of the images of each class.
        seed: of the random choice.

    Raises:
        InputError: there are no labels, there is a split `val` already, or no class has four images, or three groups.

    Example:
        >>> frame = hold_out_images(pd.DataFrame({"label": 5 * ["cat"] + 3 * ["dog"]}), 0.1)
        >>> frame.groupby("split")["label"].apply(list).to_dict()
        {'train': ['cat', 'cat', 'cat', 'dog', 'dog', 'dog'], 'val': ['cat', 'cat']}
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
    """The rows of groups at random, each taken if one of its classes wants images and all can do without."""
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
    """The groups as numbers from 0; an image without one, of which a negative integer tells, is a group of its own."""
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
            f"the table has a test split of {len(tested):,} images, which a division leaves as it is; "
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
