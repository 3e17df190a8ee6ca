"""Drawing class-balanced batches: the number of groups of each class, their batches and their images.

Three functions with the same arguments and result draw the classes; :data:`DRAWS` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError

ClassSampling = Literal["by_size", "uniform", "exhaustive"]


def check_labels(labels: npt.NDArray[np.generic], name: str = "label") -> None:
    """Raise InputError unless labels are integers, or all text; pandas says that a label is missing."""
    if labels.ndim != 1:
        raise InputError(f"{name}s are an array {list(labels.shape)}; give one {name} per image")
    missing = np.flatnonzero(pd.isna(labels))
    if len(missing):
        raise InputError(f"row {missing[0]} has no {name}; every image needs one")
    kinds = {type(label) for label in labels.tolist()} if labels.dtype == object else set()
    if len(kinds) > 1 and str in kinds:  # they cannot be sorted
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{name}s are of the types {names}; give integers or names")


def rows_by_class(labels: npt.NDArray[np.generic]) -> tuple[list[object], list[Integers]]:
    """The classes in sorted order, and the rows of each."""
    if not len(labels):
        raise InputError("no labels to make batches of; give at least one image")
    check_labels(labels)
    classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows = np.argsort(codes, kind="stable")
    return classes.tolist(), np.split(rows, np.cumsum(counts)[:-1])


def batches_by_size(
    members: Sequence[Integers],
    num_batches: int,
    classes_per_batch: int,
    samples_per_class: int,
    rng: np.random.Generator,
) -> Integers:
    """Draw batches of distinct classes, in which each class occurs as often as its number of images requires.

    Takes the rows of each of at least `classes_per_batch` classes, and returns rows `[num_batches, classes_per_batch *
    samples_per_class]`, class by class.
    """
    sizes = np.array([len(rows) for rows in members])
    limits = np.full(len(sizes), num_batches)
    quotas = draw_quotas(sizes, limits, num_batches * classes_per_batch, rng)
    classes = rng.permutation(np.flatnonzero(quotas))
    groups = np.concatenate([_draw_groups(members[c], quotas[c], samples_per_class, rng) for c in classes])
    class_of_group = np.repeat(classes, quotas[classes])
    return groups[assign_to_batches(class_of_group, num_batches, rng)].reshape(num_batches, -1)


def uniform_batches(
    members: Sequence[Integers],
    num_batches: int,
    classes_per_batch: int,
    samples_per_class: int,
    rng: np.random.Generator,
) -> Integers:
    """Draw batches of distinct classes, in which every class is equally likely, regardless of its size.

    Within a class, images are drawn as in :func:`batches_by_size`.
    """
    draws = [rng.choice(len(members), classes_per_batch, replace=False) for _ in range(num_batches)]
    classes = np.concatenate(draws)
    drawn, counts = np.unique(classes, return_counts=True)
    pairs = zip(drawn, counts, strict=True)
    groups = np.concatenate([_draw_groups(members[c], number, samples_per_class, rng) for c, number in pairs])
    batches = np.empty_like(groups)
    batches[np.argsort(classes, kind="stable")] = groups
    return batches.reshape(num_batches, -1)


def exhaustive_batches(
    members: Sequence[Integers],
    num_batches: int | None,
    classes_per_batch: int,
    samples_per_class: int,
    rng: np.random.Generator,
) -> Integers:
    """Divide every class into groups of images, and use each group in one batch, until too few classes are left.

    The classes are put in random order. Each batch takes a group of the first classes in this order that have groups
    left, so a class comes to one batch after the other until it is exhausted. The batches are then put in random order.
    Incomplete groups are not used, nor are the groups of the last classes, which are too few for a batch. `num_batches`
    come from as many such passes as needed; None: those of one pass.
    """
    passes = [_exhaust(members, classes_per_batch, samples_per_class, rng)]
    while sum(map(len, passes)) < (num_batches or 0):
        passes.append(_exhaust(members, classes_per_batch, samples_per_class, rng))
    return np.concatenate(passes)[:num_batches]


def _exhaust(
    members: Sequence[Integers], classes_per_batch: int, samples_per_class: int, rng: np.random.Generator
) -> Integers:
    order = rng.permutation(len(members))
    groups = [_whole_groups(rng.permutation(members[each]), samples_per_class) for each in order]
    left = np.array([len(each) for each in groups])
    ends = np.cumsum(left)
    batches = []
    while np.count_nonzero(left) >= classes_per_batch:
        classes = np.flatnonzero(left)[:classes_per_batch]
        batches.append(ends[classes] - left[classes])
        left[classes] -= 1
    return np.concatenate(groups)[rng.permutation(np.stack(batches))].reshape(len(batches), -1)


def _whole_groups(rows: Integers, samples_per_class: int) -> Integers:
    """The rows in complete groups, without the remainder; if there are too few, one group with repeated rows."""
    num_groups = len(rows) // samples_per_class
    return np.resize(rows, (max(1, num_groups), samples_per_class))


def draw_quotas(sizes: Integers, limits: Integers, total: int, rng: np.random.Generator) -> Integers:
    """Divide `total` among items in proportion to their positive sizes, but give none more than its limit.

    The excess over a limit is divided among the others; the sum of the limits is at least `total`. Quotas are rounded
    at random so that their expectation is exact.
    """
    assert 0 < total <= limits.sum(), (limits, total)
    quotas = np.minimum(sizes * (total / sizes.sum()), limits)
    while not np.isclose(quotas.sum(), total, rtol=1e-9):
        free = quotas < limits
        quotas[free] *= (total - limits[~free].sum()) / quotas[free].sum()
        quotas = np.minimum(quotas, limits)
    return _round_at_random(quotas, total, rng)


def _round_at_random(values: Doubles, total: int, rng: np.random.Generator) -> Integers:
    """Round each value up or down to the sum `total`, exact in expectation (systematic sampling)."""
    rounded = np.floor(values).astype(np.int64)
    order = rng.permutation(len(values))
    edges = np.cumsum((values - rounded)[order])
    num_raised = total - rounded.sum()
    points = (np.arange(num_raised) + rng.random()) * (edges[-1] / max(num_raised, 1))
    rounded[order[np.searchsorted(edges, points)]] += 1
    return rounded


def _draw_groups(rows: Integers, num_groups: int, samples_per_class: int, rng: np.random.Generator) -> Integers:
    """Draw groups of a class, `[num_groups, samples_per_class]`, in passes over all its images in random order."""
    num_passes = -(-num_groups // -(-len(rows) // samples_per_class))
    passes = [_divide_into_groups(rng.permutation(rows), samples_per_class, rng) for _ in range(num_passes)]
    return np.concatenate(passes)[:num_groups]


def _divide_into_groups(rows: Integers, samples_per_class: int, rng: np.random.Generator) -> Integers:
    if len(rows) < samples_per_class:
        return np.resize(rows, (1, samples_per_class))
    num_missing = -len(rows) % samples_per_class
    others = rows[: len(rows) - len(rows) % samples_per_class]  # the rows that are not in the incomplete group
    return np.concatenate([rows, rng.choice(others, num_missing, replace=False)]).reshape(-1, samples_per_class)


def assign_to_batches(keys: Integers, num_batches: int, rng: np.random.Generator) -> Integers:
    """Assign items to batches of equal size so that items of one key are in different batches as far as possible.

    The items, ordered by key, are assigned in rounds: each round gives one item to every batch, in random order. A key
    can come to a batch twice only if its items continue into the next round; there, the batches with the fewest of its
    items come first. So a key with at most as many items as batches comes to no batch twice. Takes the keys
    `[num_batches * items_per_batch]`, and returns positions in them, `[num_batches, items_per_batch]`.
    """
    rounds = keys.reshape(-1, num_batches)
    order = rng.permutation(num_batches)
    orders, counts = [order], np.zeros(num_batches, np.int64)
    for previous, current in pairwise(rounds):
        # How many items each batch has of the key that continues, which may have filled whole rounds before.
        counts = counts * (previous[0] == current[0]) + np.bincount(
            order[previous == current[0]], minlength=num_batches
        )
        order = rng.permutation(num_batches)
        first = order[np.argsort(counts[order], kind="stable")][: (current == current[0]).sum()]
        order = np.concatenate([first, rng.permutation(np.setdiff1d(order, first))])
        orders.append(order)
    positions = np.argsort(np.stack(orders), axis=1).T
    return positions + np.arange(len(rounds)) * num_batches


DRAWS: dict[ClassSampling, Callable[..., Integers]] = {
    "by_size": batches_by_size,
    "uniform": uniform_batches,
    "exhaustive": exhaustive_batches,
}
