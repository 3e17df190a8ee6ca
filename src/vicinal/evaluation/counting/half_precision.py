"""Scores on a GPU by products in half precision, whose error is bounded, so that few pairs need their exact score.

A GPU multiplies in half precision ten times as fast as in float32. With the mean vector m, differences r = x - m of
unit vectors from it, and their lengths, the radii,

    x . y = r_x . r_y + (x . m - m . m / 2) + (y . m - m . m / 2)

of which only the first product, of r / radius, is computed in half precision; the others are offsets, a number per
vector. So the error is small where embeddings are close to each other, as those of an untrained model are:

    |score - exact score| <= relative_error(dim) * radius_x * radius_y + ABSOLUTE_ERROR

A pair whose score is further than that from the score of a positive is on a known side of it. Every other pair, one in
some ten thousand, gets its exact score, as positives do: the product of the vectors as integers, in units of
2^-30. Sums of integers are the same in any order of additions. So ranks do not depend on the sizes of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vicinal.evaluation.counting.device_counter import MAX_KERNEL_POSITIVES
from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.scores import BLOCK_ROWS, UnitVectors
from vicinal.utils import tensor_cores
from vicinal.utils.kernels import has_kernels

if TYPE_CHECKING:
    from vicinal.evaluation.counting.positive_kernels import LabelPairs

MIN_PAIRS = 2**26
"""Of queries and gallery vectors, from which on it is worth while; computed for an H100, not measured."""
MIN_DIMS_PER_POSITIVE = 32
"""Products are faster, and comparisons with positives slower: twice as many as where these cancel out, as computed."""
MIN_CAPABILITY = (7, 0)  # of GPUs with tensor cores
MIN_RADIUS = 2.0**-12
"""Below it a difference is divided by this number, so that masked scores stay low."""
ABSOLUTE_ERROR = 2.0**-19
"""Of offsets, of their sum and of its bounds, and of rounding entries to 2^-30 and the exact score to float32.

Each is 2^-24 or a little more; of entries it is 2^-22 or less, up to 16,384 dimensions."""


def relative_error(dim: int) -> float:
    """The bound of the error of a product of unit vectors in half precision, added up in float32.

    Two factors are rounded to 11 bits each, which takes 2^-11 of each. Entries below 2^-14, and all sums, have errors
    of less than 2^-22 per dimension, also where a GPU truncates in the place of rounding.

    Example:
        >>> round(relative_error(512), 5)
        0.00111
    """
    return 2.0**-10 + (dim + 64) * 2.0**-22


@dataclass(frozen=True)
class HalfVectors:
    """Unit vectors, and their differences from a mean vector in half precision.

    Attributes:
        units: float32 [n, dim].
        halves: float16 [n, dim], the differences divided by their radii.
        radii: float32 [n].
        offsets: float32 [n].
    """

    units: Tensor
    halves: Tensor
    radii: Tensor
    offsets: Tensor

    @classmethod
    def around(cls, mean: Tensor, units: Tensor) -> HalfVectors:
        """Compute them for a mean vector, float32 [dim]."""
        units = units.contiguous()  # kernels go along their rows
        made = cls(units, torch.empty_like(units, dtype=torch.float16), *units.new_empty(2, len(units)))
        exact = mean.double()
        for start in range(0, len(units), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            differences = units[rows] - mean
            made.radii[rows] = differences.norm(dim=1).clamp_min_(MIN_RADIUS)
            made.halves[rows] = differences / made.radii[rows, None]
            made.offsets[rows] = units[rows].double() @ exact - exact @ exact / 2
        return made

    def block(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` in half precision, float16 [stop - start, dim]."""
        return self.halves[start:stop]

    def part(self, start: int, stop: int) -> HalfVectors:
        """Rows `start` to `stop`."""
        return HalfVectors(*(each[start:stop] for each in (self.units, self.halves, self.radii, self.offsets)))


class HalfScores:
    """The scores of queries with a gallery, in half precision and exact ones of single pairs.

    Args:
        queries: [q, dim], whose unit vectors are kept.
        gallery: [g, dim], likewise; the same object where a set searches itself.
        rows: the largest number of queries of a tile.
        columns: the largest number of gallery rows of a tile.
    """

    def __init__(self, queries: UnitVectors, gallery: UnitVectors, rows: int, columns: int) -> None:
        units = gallery.block(0, len(gallery))
        mean = units.mean(dim=0)
        self.gallery = HalfVectors.around(mean, units)
        is_same = queries is gallery
        self.queries = self.gallery if is_same else HalfVectors.around(mean, queries.block(0, len(queries)))
        self.errors = relative_error(gallery.dim), ABSOLUTE_ERROR
        self._buffer = units.new_empty(rows * columns)

    def part(self, start: int, stop: int) -> HalfScores:
        """The same for queries `start` to `stop`."""
        part = copy(self)
        part.queries = self.queries.part(start, stop)
        return part

    def product(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Multiply rows in half precision: float32 [queries, gallery], valid until the next call."""
        out = self._buffer[: len(queries) * len(gallery)].view(len(queries), len(gallery))
        return tensor_cores.product(queries, gallery.T, out=out)

    def score_pairs(self, pairs: LabelPairs, scores: Tensor) -> None:
        """Write the exact scores of pairs, float32 [pairs]."""
        from vicinal.evaluation.counting import half_precision_kernels  # imports Triton

        half_precision_kernels.score_pairs(self.queries.units, self.gallery.units, pairs, scores)


def half_precision_helps(queries: UnitVectors, gallery: UnitVectors, levels: Sequence[Relevance]) -> bool:
    """Whether ranks are found faster with :class:`HalfScores`, on this device and for so many vectors and positives."""
    is_large = len(queries) * len(gallery) >= MIN_PAIRS
    are_kept = queries.is_kept and gallery.is_kept
    if not (is_large and are_kept and _has_products(gallery.device) and has_kernels(gallery.block(0, 1))):
        return False
    positives = np.stack([relevance.label_counts() for relevance in levels])
    are_few = positives.max() <= MAX_KERNEL_POSITIVES
    return are_few and gallery.dim >= MIN_DIMS_PER_POSITIVE * positives.sum() / len(queries)


def _has_products(device: torch.device) -> bool:
    """Whether a device adds up products in half precision in float32; torch can be set to add up in half precision."""
    has_tensor_cores = tensor_cores.capability(device) >= MIN_CAPABILITY
    return has_tensor_cores and not torch.backends.cuda.matmul.allow_fp16_accumulation
