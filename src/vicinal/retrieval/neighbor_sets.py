"""Sets of gallery rows, one an image, and how many members two of them share: what re-ranking compares images by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

MARKS = 2**24  # bytes of marks that are held at a time
MOST_AT_ONCE = 2**21  # members that are looked at at a time

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
        keys = np.unique(rows * width + members)
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
            shared[start:stop] = _count_marked(marks, rows[start:stop] - first, right, others[start:stop])
            marks[images, left.members[places]] = False
    return shared


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
