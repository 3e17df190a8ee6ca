"""Class centers, whole or tile by tile, and the input of a center-based loss for each anchor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.embeddings import MIN_GRADIENT_NORM, MIN_NORM, normalize


class CenterRows(NamedTuple):
    """The input of a center-based loss for some anchors.

    Attributes:
        own: float [rows, centers_per_class], similarities to the centers of the anchor's own class.
        others: float [rows], log-sum-exp of scale x similarity over all other classes; -inf where there is none.
        mean: float [rows], mean of scale x similarity over all classes; 0 unless it was asked for.
        num_classes: number of classes.
    """

    own: Tensor
    others: Tensor
    mean: Tensor
    num_classes: int


RowValues = Callable[[CenterRows], Tensor]
"""Computes one value per anchor, [rows], differentiable."""


@dataclass(frozen=True)
class ClassCenters:
    """Class centers, and how the similarity of an anchor to a class is computed.

    Attributes:
        vectors: float [num_classes x centers_per_class, d], in the order of classes; of a shard its own.
        scale: factor of the similarities in the exponentials.
        centers_per_class: number of centers of each class.
        temperature: of the softmax that weights several centers of a class.
        bias: float [num_classes], added to the products; neither anchors nor centers are then normalized.
        needs_mean: whether the loss needs `CenterRows.mean`, which requires one center per class.
        class_ids: int [classes here], the labels of the classes of `vectors`, ascending; None: 0, 1, 2, ...
        classes_per_process: number of classes that each process holds, the same tuple on all of them; empty: this
            process holds all classes.
    """

    vectors: Tensor
    scale: float
    centers_per_class: int = 1
    temperature: float = 1.0
    bias: Tensor | None = None
    needs_mean: bool = False
    class_ids: Tensor | None = None
    classes_per_process: tuple[int, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether other processes hold centers of other classes."""
        return len(self.classes_per_process) > 0

    @property
    def num_classes(self) -> int:
        """Number of classes of all processes."""
        return sum(self.classes_per_process) or len(self.vectors) // self.centers_per_class

    @property
    def max_centers(self) -> int:
        """Largest number of centers of a process; the same on all of them, so that they use blocks of equal size."""
        return max(self.classes_per_process, default=0) * self.centers_per_class or len(self.vectors)

    def parameters(self, dtype: torch.dtype) -> list[Tensor]:
        """Vectors and bias, if any, in the dtype of the computation."""
        return [part.to(dtype) for part in (self.vectors, self.bias) if part is not None]

    def locate(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each label's class among the classes held here, and whether it is held here, both [rows]."""
        if self.class_ids is None:
            return labels.long(), torch.ones_like(labels, dtype=torch.bool)
        index = torch.searchsorted(self.class_ids, labels.long()).clamp_max(len(self.class_ids) - 1)
        return index, self.class_ids[index] == labels

    def own_similarity(self, anchors: Tensor, own: Tensor, bias: Tensor | None) -> Tensor:
        """Similarities [rows, centers_per_class] of anchors to the centers of their classes.

        Args:
            anchors: float [rows, d].
            own: float [rows x centers_per_class, d], not normalized.
            bias: float [rows], or None.
        """
        units = own if bias is not None else normalize(own)
        similarity = torch.linalg.vecdot(anchors[:, None], units.view(len(anchors), self.centers_per_class, -1))
        return similarity if bias is None else similarity + bias[:, None]


def dense_center_rows(
    anchors: Tensor, labels: Tensor, centers: ClassCenters, vectors: Tensor, bias: Tensor | None = None
) -> CenterRows:
    """Compute the rows from the whole similarity matrix, with autograd."""
    by_class, logits = dense_logits(anchors, centers, vectors, bias)
    index, _ = centers.locate(labels)
    own = torch.take_along_dim(by_class, index[:, None, None], dim=1)[:, 0] / centers.scale
    is_own = torch.arange(centers.num_classes, device=labels.device) == index[:, None]
    others = logits.masked_fill(is_own, -math.inf).logsumexp(dim=1)
    return CenterRows(own, others, logits.mean(dim=1), centers.num_classes)


def dense_logits(
    anchors: Tensor, centers: ClassCenters, vectors: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute scale x similarity to each center, [n, num_classes, centers_per_class], and class, [n, num_classes]."""
    similarity = anchors @ (vectors if bias is not None else normalize(vectors)).T
    logits = centers.scale * (similarity if bias is None else similarity + bias)
    by_class = logits.view(len(logits), -1, centers.centers_per_class)
    if centers.centers_per_class > 1:
        weights = (by_class / (centers.scale * centers.temperature)).softmax(dim=2)
        logits = (weights * by_class).sum(dim=2)
    return by_class, logits


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
