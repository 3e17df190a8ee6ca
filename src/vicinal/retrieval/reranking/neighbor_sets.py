"""Sets of gallery rows, one per image, and the sizes of their intersections, by which re-ranking compares images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vicinal.utils.arrays import Booleans, Floats, Integers, chunk_ranges

MASK_BYTES = 2**24  # of the membership mask in memory at a time
MAX_MEMBERS = 2**21  # members that are looked up at a time
LARGE_SET = 256  # members of a set for which a matrix product may pay
PRODUCT_SPEED = 64  # multiply-adds of a matrix product in the time of one look-up; 400 were measured


@dataclass(frozen=True)
class NeighborSets:
    """One set of gallery rows per image, in compressed sparse row format."""

    starts: Integers  # [images + 1], where each image's set starts in `members`, and the end of the last one
    members: Integers  # ascending within a set

    @classmethod
    def from_pairs(cls, rows: Integers, members: Integers, num_images: int) -> NeighborSets:
        """Build sets from pairs of an image and a member, in any order; duplicate pairs count once."""
        width = int(members.max(initial=0)) + 1
        keys = rows * width + members
        keys.sort()
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
        return cls(np.searchsorted(keys, np.arange(num_images + 1) * width), keys % width)

    @cached_property
    def sizes(self) -> Integers:
        """Number of members of each set, int64 [images]."""
        return np.diff(self.starts)

    @property
    def rows(self) -> Integers:
        """The image that each member belongs to, int64 [members]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def slice(self, start: int, stop: int) -> NeighborSets:
        """Return the sets of images `start` to `stop`."""
        starts = self.starts[start : stop + 1]
        return NeighborSets(starts - starts[0], self.members[starts[0] : starts[-1]])

    def expand(self, images: Integers) -> tuple[Integers, Integers]:
        """The members of the given images' sets: for each the index into `images`, and that into `members`."""
        sizes = self.sizes[images]
        shifts = self.starts[images] - (np.cumsum(sizes) - sizes)
        return np.repeat(np.arange(len(images)), sizes), np.arange(sizes.sum()) + np.repeat(shifts, sizes)


def intersection_sizes(
    left: NeighborSets, left_images: Integers, right: NeighborSets, right_images: Integers, num_gallery: int
) -> Integers:
    """The number of members that the sets of two images share, for many pairs; `left_images` ascend."""
    counts = np.empty(len(left_images), dtype=np.int64)
    height = max(1, min(MASK_BYTES // num_gallery, len(left.sizes)))
    mask = np.zeros((height, num_gallery), dtype=np.bool_)
    for first in range(0, len(left.sizes), height):
        start, stop = (int(position) for position in np.searchsorted(left_images, [first, first + height]))
        if start < stop:
            rows, positions = left.expand(np.arange(first, min(first + height, len(left.sizes))))
            mask[rows, left.members[positions]] = True
            counts[start:stop] = _count(mask, left_images[start:stop] - first, right, right_images[start:stop])
            mask[rows, left.members[positions]] = False
    return counts


def _count(mask: Booleans, rows: Integers, sets: NeighborSets, images: Integers) -> Integers:
    """Count the members of a set that a row of the mask contains; large sets by a matrix product if that is faster."""
    counts, sizes = np.empty(len(rows), dtype=np.int64), sets.sizes[images]
    is_large = sizes >= LARGE_SET
    if is_large.any():
        large_rows, large_images = _unique(rows[is_large], len(mask)), _unique(images[is_large], len(sets.sizes))
        columns = np.flatnonzero(mask[large_rows].any(axis=0))
        is_large &= len(large_rows) * len(columns) * len(large_images) < PRODUCT_SPEED * sizes[is_large].sum()
    if is_large.any():
        products = _count_by_product(mask[large_rows][:, columns], columns, sets, large_images, mask.shape[1])
        selected = np.searchsorted(large_rows, rows[is_large]), np.searchsorted(large_images, images[is_large])
        counts[is_large] = products[selected]
    counts[~is_large] = _count_by_lookup(mask, rows[~is_large], sets, images[~is_large])
    return counts


def _unique(values: Integers, upper: int) -> Integers:
    """Return the unique ones of many values below `upper`, ascending; faster than `numpy.unique`, which sorts."""
    present = np.zeros(upper, dtype=np.bool_)
    present[values] = True
    return np.flatnonzero(present)


def _count_by_product(mask: Booleans, columns: Integers, sets: NeighborSets, images: Integers, width: int) -> Floats:
    """Count the members of each image's set in each row of a mask of some columns, [rows, images]."""
    left = mask.astype(np.float32)  # sums of ones are exact up to 2**24
    counts = np.empty((len(left), len(images)), dtype=np.float32)
    position = np.full(width, -1)
    position[columns] = np.arange(len(columns))
    for start, stop in chunk_ranges(np.maximum(sets.sizes[images], len(columns)), MAX_MEMBERS):
        rows, members = sets.expand(images[start:stop])
        selected = position[sets.members[members]]
        right = np.zeros((stop - start, len(columns)), dtype=np.float32)
        right[rows[selected >= 0], selected[selected >= 0]] = 1
        counts[:, start:stop] = left @ right.T
    return counts


def _count_by_lookup(mask: Booleans, rows: Integers, sets: NeighborSets, images: Integers) -> Integers:
    counts = np.empty(len(rows), dtype=np.int64)
    for start, stop in chunk_ranges(sets.sizes[images], MAX_MEMBERS):
        pairs, positions = sets.expand(images[start:stop])
        hits = mask[rows[start:stop][pairs], sets.members[positions]]
        counts[start:stop] = np.bincount(pairs[hits], minlength=stop - start)
    return counts
