"""Sets of gallery rows, one an image, and how many members two of them share: what re-ranking compares images by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

MARKS = 2**24  # bytes of marks that are held at a time
MOST_AT_ONCE = 2**21  # members that are looked at at a time
LARGE = 256  # members of a set that may be worth a matrix product
PRODUCT_SPEED = 64  # multiply-adds of a matrix product that take no longer than to look at one member; measured: 400

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NeighborSets:
    """A set of gallery rows for each of some images, one set after the other.

    Attributes:
        starts: int64 [images + 1], where each image's set starts in `members`, and the end of all.
        members: int64 [all members], ascending within a set.

    Example:
        >>> sets = NeighborSets.of_pairs(np.array([1, 0, 1, 1]), np.array([5, 3, 2, 5]), images=3)
        >>> sets.starts, sets.members
        (array([0, 1, 3, 3]), array([3, 2, 5]))
    """

    starts: Integers
    members: Integers

    @classmethod
    def of_pairs(cls, rows: Integers, members: Integers, images: int) -> NeighborSets:
        """Sets from pairs of an image and a member, in any order; pairs that come twice count once."""
        width = int(members.max(initial=0)) + 1
        keys = rows * width + members
        keys.sort()
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
        return cls(np.searchsorted(keys, np.arange(images + 1) * width), keys % width)

    @cached_property
    def sizes(self) -> Integers:
        """How many members each set has, int64 [images]."""
        return np.diff(self.starts)

    @property
    def rows(self) -> Integers:
        """The image that each member belongs to, int64 [all members]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def slice(self, start: int, stop: int) -> NeighborSets:
        """The sets of images `start` to `stop`."""
        starts = self.starts[start : stop + 1]
        return NeighborSets(starts - starts[0], self.members[starts[0] : starts[-1]])

    def expand(self, images: Integers) -> tuple[Integers, Integers]:
        """All members of the sets of the given images, in turn.

        Returns:
            For each member which of the given images it belongs to, by position, and where in `members` it stands.
        """
        sizes = self.sizes[images]
        shifts = self.starts[images] - (np.cumsum(sizes) - sizes)
        return np.repeat(np.arange(len(images)), sizes), np.arange(sizes.sum()) + np.repeat(shifts, sizes)


def shared_members(
    left: NeighborSets, rows: Integers, right: NeighborSets, others: Integers, width: int
) -> npt.NDArray[np.int64]:
    """How many members the sets of two images share, for many pairs of images.

    Args:
        left: the sets of the one image of a pair.
        rows: int64 [pairs], which set of `left`; ascending.
        right: the sets of the other image.
        others: int64 [pairs], which set of `right`.
        width: how many gallery rows there are.

    Returns:
        int64 [pairs].

    Example:
        >>> sets = NeighborSets.of_pairs(np.array([0, 0, 1, 1]), np.array([0, 3, 3, 4]), images=2)
        >>> shared_members(sets, np.array([0, 0]), sets, np.array([0, 1]), width=5)
        array([2, 1])
    """
    shared = np.empty(len(rows), dtype=np.int64)
    height = max(1, min(MARKS // width, len(left.sizes)))
    marks = np.zeros((height, width), dtype=np.bool_)
    for first in range(0, len(left.sizes), height):
        start, stop = (int(place) for place in np.searchsorted(rows, [first, first + height]))
        if start < stop:
            images, places = left.expand(np.arange(first, min(first + height, len(left.sizes))))
            marks[images, left.members[places]] = True
            shared[start:stop] = _count(marks, rows[start:stop] - first, right, others[start:stop])
            marks[images, left.members[places]] = False
    return shared


def _count(marks: npt.NDArray[np.bool_], rows: Integers, sets: NeighborSets, others: Integers) -> Integers:
    """How many members of a set are marked in a row, for pairs of both: large sets by a product, where that is less."""
    counts, sizes = np.empty(len(rows), dtype=np.int64), sets.sizes[others]
    large = sizes >= LARGE
    if large.any():
        present, wanted = _distinct(rows[large], len(marks)), _distinct(others[large], len(sets.sizes))
        columns = np.flatnonzero(marks[present].any(axis=0))
        large &= len(present) * len(columns) * len(wanted) < PRODUCT_SPEED * sizes[large].sum()
    if large.any():
        products = _count_by_product(marks[present][:, columns], columns, sets, wanted, marks.shape[1])
        counts[large] = products[np.searchsorted(present, rows[large]), np.searchsorted(wanted, others[large])]
    counts[~large] = _count_marked(marks, rows[~large], sets, others[~large])
    return counts


def _distinct(numbers: Integers, most: int) -> Integers:
    """The different numbers among many below `most`, ascending."""
    present = np.zeros(most, dtype=np.bool_)
    present[numbers] = True
    return np.flatnonzero(present)


def _count_by_product(
    marks: npt.NDArray[np.bool_], columns: Integers, sets: NeighborSets, wanted: Integers, width: int
) -> npt.NDArray[np.float32]:
    """How many members of each wanted set are marked in each row of some columns, [rows, wanted]."""
    left = marks.astype(np.float32)  # sums of ones are exact up to 2**24
    counts = np.empty((len(left), len(wanted)), dtype=np.float32)
    position = np.full(width, -1)
    position[columns] = np.arange(len(columns))
    for start, stop in pieces(np.maximum(sets.sizes[wanted], len(columns)), MOST_AT_ONCE):
        pairs, places = sets.expand(wanted[start:stop])
        at = position[sets.members[places]]
        right = np.zeros((stop - start, len(columns)), dtype=np.float32)
        right[pairs[at >= 0], at[at >= 0]] = 1
        counts[:, start:stop] = left @ right.T
    return counts


def _count_marked(marks: npt.NDArray[np.bool_], rows: Integers, sets: NeighborSets, others: Integers) -> Integers:
    counts = np.empty(len(rows), dtype=np.int64)
    for start, stop in pieces(sets.sizes[others], MOST_AT_ONCE):
        pairs, places = sets.expand(others[start:stop])
        hits = marks[rows[start:stop][pairs], sets.members[places]]
        counts[start:stop] = np.bincount(pairs[hits], minlength=stop - start)
    return counts


def pieces(amounts: Integers, most: int) -> Iterator[tuple[int, int]]:
    """Cut a list into pieces from start to stop, whose amounts sum to `most` or less, or which are of one entry.

    Example:
        >>> list(pieces(np.array([2, 2, 9, 1]), most=4))
        [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.concatenate([[0], np.cumsum(amounts)])
    start = 0
    while start < len(amounts):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + most, "right")) - 1)
        yield start, stop
        start = stop
