"""Where in a similarity matrix the positive and the negative pairs are: as masks, or as the columns of each class."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

SPARSE_FRACTION, MAX_GATHERED = 1 / 16, 2**21
"""Up to this fraction of all columns, and this many numbers, gathering vectors is cheaper than a matrix product."""


class Pairs(Protocol):
    """The pairs of some anchors with all references."""

    @property
    def positive(self) -> Tensor:
        """Bool [rows, k], whether each of k columns, all or those of the anchor's class, is a positive."""

    def repeat(self, times: int) -> Pairs:
        """The pairs of the same anchors several times: [times x rows]."""

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Split similarities [rows, c] into positives [rows, p], padded with +inf, and negatives [rows, c], padded
        with -inf. May overwrite its argument.
        """

    def join(self, grad_positives: Tensor | None, grad_negatives: Tensor | None) -> Tensor:
        """Combine the gradients with respect to what `split` returns into that with respect to the similarities,
        [rows, c]. At most one of them is None. May overwrite its arguments.
        """


class MaskedPairs(NamedTuple):
    """Pairs as masks.

    Attributes:
        positive: bool [rows, c].
        negative: bool [rows, c].
    """

    positive: Tensor
    negative: Tensor

    @classmethod
    def without_self(cls, positive: Tensor, negative: Tensor, first: int | None) -> MaskedPairs:
        """Remove the pair of each anchor with itself; row i is column `first + i`, or no column if that is None."""
        if first is None:
            return cls(positive, negative)
        columns = torch.arange(positive.shape[1], device=positive.device)
        others = columns != torch.arange(first, first + len(positive), device=positive.device)[:, None]
        return cls(positive & others, negative & others)

    def repeat(self, times: int) -> MaskedPairs:
        return MaskedPairs(self.positive.repeat(times, 1), self.negative.repeat(times, 1))

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return (
            torch.where(self.positive, similarity, math.inf),
            torch.where(self.negative, similarity, -math.inf),
        )

    def join(self, grad_positives: Tensor | None, grad_negatives: Tensor | None) -> Tensor:
        if grad_positives is None or grad_negatives is None:
            gradient = grad_negatives if grad_positives is None else grad_positives
            assert gradient is not None
            return gradient
        return grad_positives + grad_negatives


class ClassPairs(NamedTuple):
    """Pairs of equal and of unequal labels, by the few columns of each anchor's own class.

    Only these columns are read and written, where masks would need passes over all columns.

    Attributes:
        columns: int [rows, p], the columns of the anchor's class; where there are fewer than p, one is repeated.
        positive: bool [rows, p], whether the column is a positive: neither repeated nor the anchor itself.
        present: bool [rows, 1], whether the class has any column.
        num_references: c, the number of all columns.
    """

    columns: Tensor
    positive: Tensor
    present: Tensor
    num_references: int

    def repeat(self, times: int) -> ClassPairs:
        columns, positive, present = (x.repeat(times, 1) for x in (self.columns, self.positive, self.present))
        return ClassPairs(columns, positive, present, self.num_references)

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        own_class = similarity.gather(1, self.columns)
        similarity.scatter_(1, self.columns, own_class.masked_fill(self.present, -math.inf))
        return own_class.masked_fill_(~self.positive, math.inf), similarity

    def join(self, grad_positives: Tensor | None, grad_negatives: Tensor | None) -> Tensor:
        if grad_negatives is None:
            assert grad_positives is not None
            gradient = grad_positives.new_zeros(len(grad_positives), self.num_references)
        else:
            gradient = grad_negatives.contiguous()
        return (
            gradient if grad_positives is None else gradient.scatter_add_(1, self.columns, self._masked(grad_positives))
        )

    def is_sparse(self, dim: int) -> bool:
        """Whether there are so few positives that `add_products` of vectors [dim] is cheap."""
        few = self.columns.shape[1] <= SPARSE_FRACTION * self.num_references
        return few and self.columns.numel() * dim <= MAX_GATHERED

    def add_products(
        self, grad_positives: Tensor | None, anchors: Tensor, references: Tensor, totals: tuple[Tensor, Tensor]
    ) -> None:
        """Add the gradients with respect to anchors [rows, d] and references [c, d] to two tensors.

        The result is that of `join` and two matrix products, at a cost that grows with p instead of c.
        """
        assert grad_positives is not None
        gradient = self._masked(grad_positives)
        totals[0].add_(F.embedding_bag(self.columns, references, per_sample_weights=gradient, mode="sum"))
        products = gradient[:, :, None] * anchors[:, None, :]
        totals[1].index_add_(0, self.columns.flatten(), products.flatten(0, 1))

    def _masked(self, grad_positives: Tensor) -> Tensor:
        # The gradient at a repeated column must not be added to that of the column itself.
        return grad_positives.masked_fill(~self.positive, 0.0)


class ClassColumns:
    """The columns of each class among the references.

    Args:
        reference_labels: int [c].
        labels: int [n], those of all anchors.
        max_class_size: the number of references of the largest class, or more; None: it is counted.
    """

    def __init__(self, reference_labels: Tensor, labels: Tensor, max_class_size: int | None = None) -> None:
        # searchsorted does not take all integer types
        self.labels, self.columns = reference_labels.long().sort(stable=True)
        # One width for all tiles, as reading it makes the host wait for a GPU; on a CPU each tile has its own.
        self.width = None if labels.device.type == "cpu" else max_class_size or _width(*self._bounds(labels))

    def pairs(self, labels: Tensor, first: int | None) -> Pairs:
        """The pairs of anchors with these labels; row i is column `first + i`, or no column if that is None."""
        begin, end = self._bounds(labels)
        width, device = self.width or _width(begin, end), labels.device
        positions = begin + torch.arange(width, device=device)
        columns = self.columns[positions.minimum(end - 1).clamp_min(0)]
        positive = positions < end
        if first is not None:
            positive &= columns != torch.arange(first, first + len(labels), device=device)[:, None]
        return ClassPairs(columns, positive, begin < end, len(self.columns))

    def _bounds(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where the columns of each label begin and end among `columns`, [n, 1] each."""
        labels = labels.long().contiguous()
        begin, end = (torch.searchsorted(self.labels, labels, right=right) for right in (False, True))
        return begin[:, None], end[:, None]


def _width(begin: Tensor, end: Tensor) -> int:
    """The number of columns of the largest class, at least 1; makes the host wait for a GPU."""
    return max(1, int((end - begin).amax())) if len(begin) else 1
