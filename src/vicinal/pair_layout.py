"""Where in a similarity matrix the positive and the negative pairs are: by masks, or by the columns of a class."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

SPARSE_SHARE, MOST_GATHERED = 1 / 16, 2**21
"""Up to this share of all columns, and this many numbers, gathering vectors is cheaper than a matrix product."""


class Pairs(Protocol):
    """The pairs of some anchors with all references."""

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities [rows, c] as positives [rows, p] (+inf: no pair) and negatives [rows, c] (-inf: no pair).

        May overwrite its argument.
        """

    def join(self, positives: Tensor | None, negatives: Tensor | None) -> Tensor:
        """Gradients by positives and negatives as one by the similarities, [rows, c]; may overwrite its arguments."""


class MaskedPairs(NamedTuple):
    """Pairs of any kind.

    Attributes:
        positive: bool [rows, c].
        negative: bool [rows, c].
    """

    positive: Tensor
    negative: Tensor

    @classmethod
    def without_self(cls, positive: Tensor, negative: Tensor, first: int | None) -> MaskedPairs:
        """The masks less the pairs of an anchor with itself, which is in column `first` for the first of them."""
        if first is None:
            return cls(positive, negative)
        columns = torch.arange(positive.shape[1], device=positive.device)
        others = columns != torch.arange(first, first + len(positive), device=positive.device)[:, None]
        return cls(positive & others, negative & others)

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return (
            torch.where(self.positive, similarity, math.inf),
            torch.where(self.negative, similarity, -math.inf),
        )

    def join(self, positives: Tensor | None, negatives: Tensor | None) -> Tensor:
        if positives is None or negatives is None:
            total = negatives if positives is None else positives
            assert total is not None
            return total
        return positives + negatives


class ClassPairs(NamedTuple):
    """Pairs of equal and of unequal labels, by the few columns that an anchor's own class has.

    Only those columns are touched, where masks would be passes over all of them.

    Attributes:
        columns: int [rows, p], the columns of the anchor's class, one of them repeated where it has fewer than p.
        positive: bool [rows, p], where the column is a positive: neither repeated nor the anchor itself.
        present: bool [rows, 1], whether the class has a column at all.
        references: c, the number of all columns.
    """

    columns: Tensor
    positive: Tensor
    present: Tensor
    references: int

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        own_class = similarity.gather(1, self.columns)
        similarity.scatter_(1, self.columns, own_class.masked_fill(self.present, -math.inf))
        return own_class.masked_fill_(~self.positive, math.inf), similarity

    def join(self, positives: Tensor | None, negatives: Tensor | None) -> Tensor:
        total = self._zeros(positives) if negatives is None else negatives.contiguous()
        return total if positives is None else total.scatter_add_(1, self.columns, self._masked(positives))

    def is_sparse(self, dim: int) -> bool:
        """Whether there are so few positives that `add_products` of vectors [dim] is cheap."""
        few = self.columns.shape[1] <= SPARSE_SHARE * self.references
        return few and self.columns.numel() * dim <= MOST_GATHERED

    def add_products(
        self, positives: Tensor | None, anchors: Tensor, references: Tensor, to: tuple[Tensor, Tensor]
    ) -> None:
        """Add to two tensors what a gradient by positives alone is by anchors [rows, d] and references [c, d].

        The same as with `join` and two matrix products, at a cost that grows with p and not with c.
        """
        assert positives is not None
        gradient = self._masked(positives)
        to[0].add_(F.embedding_bag(self.columns, references, per_sample_weights=gradient, mode="sum"))
        products = gradient[:, :, None] * anchors[:, None, :]
        to[1].index_add_(0, self.columns.flatten(), products.flatten(0, 1))

    def _masked(self, positives: Tensor) -> Tensor:
        # A repeated column stands for a real one, to which its gradient must not be added.
        return positives.masked_fill(~self.positive, 0.0)

    def _zeros(self, like: Tensor | None) -> Tensor:
        assert like is not None
        return like.new_zeros(len(like), self.references)


class ClassColumns:
    """The columns of each class among the references.

    Args:
        labels: int [c], on the CPU.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels, self.columns = labels.long().sort(stable=True)  # not all types of integers can be searched

    def pairs(self, labels: Tensor, first: int | None) -> Pairs:
        """The pairs of anchors with these labels; the first of them is column `first` and no pair of itself."""
        labels = labels.long().contiguous()
        begin = torch.searchsorted(self.labels, labels)[:, None]
        end = torch.searchsorted(self.labels, labels, right=True)[:, None]
        width = max(1, int((end - begin).amax()))
        places = begin + torch.arange(width)
        columns = self.columns[places.minimum(end - 1).clamp_min(0)]
        positive = places < end
        if first is not None:
            positive &= columns != torch.arange(first, first + len(labels))[:, None]
        return ClassPairs(columns, positive, begin < end, len(self.columns))
