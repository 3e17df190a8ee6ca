"""Normalized class centers, tile by tile, and the gradient of the normalization."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vicinal.similarity.normalize import MIN_GRADIENT_NORM, MIN_NORM


class CenterTiles:
    """Normalized class centers, tile by tile. Gradients with respect to them become gradients of the centers.

    Iterating gives the spans of the tiles.

    Args:
        vectors: float [centers, d].
        normalized: whether the vectors are L2-normalized, or used as they are.
        size: number of centers in a tile.
        needs_sum: whether `sum` is needed.

    Attributes:
        sum: float [d], of all normalized vectors, once every tile was read.
    """

    def __init__(self, vectors: Tensor, normalized: bool, size: int, needs_sum: bool = False) -> None:
        self.vectors, self.normalized, self.size, self.needs_sum = vectors, normalized, size, needs_sum
        self.inverse_norms = vectors.new_ones(len(vectors))
        self.sum = vectors.new_zeros(vectors.shape[1])
        self.num_read = 0

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, len(self.vectors), self.size):
            yield slice(start, min(start + self.size, len(self.vectors)))

    def units(self, span: slice) -> Tensor:
        """The normalized vectors of a tile, [size, d]."""
        vectors, inverse = self.vectors[span], self.inverse_norms[span]
        is_first = span.stop > self.num_read
        self.num_read = max(self.num_read, span.stop)
        if is_first and self.normalized:
            # In float64 the square of a large or a small entry neither overflows nor underflows.
            norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
            inverse.copy_(norms.clamp_min_(MIN_NORM).reciprocal_())
        if is_first and self.needs_sum:
            self.sum += inverse @ vectors
        return vectors * inverse[:, None] if self.normalized else vectors

    def normalize_backward(self, gradient: Tensor, units: Tensor, span: slice) -> None:
        """Turn the gradient with respect to the normalized vectors of a tile into that of its vectors, in place."""
        if self.normalized:
            along = torch.linalg.vecdot(gradient, units)[:, None]
            inverse = self.inverse_norms[span, None].clamp_max(1 / MIN_GRADIENT_NORM)
            gradient.addcmul_(units, along, value=-1).mul_(inverse)


def mask_own_class(logits: Tensor, index: Tensor, is_local: Tensor) -> None:
    """Set one column of each row of a tile to -inf, in place, where `is_local` and the column is inside the tile."""
    inside = is_local & (index >= 0) & (index < logits.shape[1])
    index = index.clamp(0, logits.shape[1] - 1)[:, None]
    logits.scatter_(1, index, logits.gather(1, index).masked_fill_(inside[:, None], -math.inf))
