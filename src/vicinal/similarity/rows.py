"""Rows of a similarity matrix: where their positive and negative pairs are, and the similarities of both.

Pairs are masks, or the columns of each class. Where few entries of a row have a gradient, only these are multiplied.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SPARSE_FRACTION, MAX_GATHERED, MAX_GATHERED_ON_GPU = 1 / 16, 2**21, 2**25
"""Up to this fraction of all columns, and this many numbers, gathering vectors is cheaper than a matrix product."""
MAX_FRACTION = 1 / 64
"""Up to this fraction of nonzero entries of a gradient gathering vectors is cheaper than a matrix product."""
SAMPLED_ROWS = 16
"""The step of a sample of rows that recognizes a gradient with many entries, of which no list is made."""


class Rows(NamedTuple):
    """Similarities of some anchors to their positives and to their negatives.

    The columns of a row are in no particular order, and positives and negatives have separate columns. Entries without
    a pair are padding, +inf among positives and -inf among negatives: a pair so easy that it contributes nothing to
    hinges, exponentials and extremes. Whatever is computed from a row must have a zero gradient there.

    Attributes:
        positives: float [rows, p], cosine similarities in [-1, 1], or +inf.
        negatives: float [rows, q], cosine similarities in [-1, 1], or -inf.
        labels: int [rows], the labels of the anchors, or [rows, ...] with a relation; None where none were given.
        keys: int [rows], a number for each anchor that changes from call to call; random choices depend on it.
        dim: dimension of the embeddings.
        positive_weights: float [rows, p], how much each positive counts, as with mixed examples; 0 for padding. None:
            each counts as one. Only losses with `supports_weights` read it.
        negative_weights: float [rows, q], the same for the negatives.
    """

    positives: Tensor
    negatives: Tensor
    labels: Tensor | None
    keys: Tensor
    dim: int
    positive_weights: Tensor | None = None
    negative_weights: Tensor | None = None

    def keep(self, positives: Tensor | None = None, negatives: Tensor | None = None) -> Rows:
        """Return the rows with only the pairs that are True in the bool masks; None keeps all pairs of a kind."""
        rows = self
        if positives is not None:
            rows = rows._replace(positives=torch.where(positives, self.positives, math.inf))
        if negatives is not None:
            rows = rows._replace(negatives=torch.where(negatives, self.negatives, -math.inf))
        return rows

    def as_leaves(self, requires_grad: bool) -> Rows:
        """Return the rows with similarities that are leaves of the graph."""
        positives, negatives = (x.detach().requires_grad_(requires_grad) for x in (self.positives, self.negatives))
        return self._replace(positives=positives, negatives=negatives)

    @property
    def hardest_positive(self) -> Tensor:
        """Lowest similarity of a positive, [rows, 1], without gradient; +inf for an anchor without positives."""
        return self.positives.detach().amin(dim=1, keepdim=True)

    @property
    def hardest_negative(self) -> Tensor:
        """Highest similarity of a negative, [rows, 1], without gradient; -inf for an anchor without negatives."""
        return self.negatives.detach().amax(dim=1, keepdim=True)

    @property
    def has_positives(self) -> Tensor:
        """Whether an anchor has a positive, bool [rows]."""
        return self.hardest_positive.squeeze(1) < math.inf

    @property
    def has_negatives(self) -> Tensor:
        """Whether an anchor has a negative, bool [rows]."""
        return self.hardest_negative.squeeze(1) > -math.inf


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

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Split similarities into positives, padded with +inf, and negatives, padded with -inf, [rows, c] each."""
        return (torch.where(self.positive, similarity, math.inf), torch.where(self.negative, similarity, -math.inf))

    def join(self, grad_positives: Tensor | None, grad_negatives: Tensor | None) -> Tensor:
        """The gradient with respect to the similarities from those of the results of `split`; at most one is None."""
        if grad_positives is None or grad_negatives is None:
            gradient = grad_negatives if grad_positives is None else grad_positives
            assert gradient is not None
            return gradient
        return grad_positives + grad_negatives


class ClassPairs(NamedTuple):
    """Pairs of equal and of unequal labels, by the few columns of each anchor's own class.

    Only these columns are read and written, where masks would need passes over all columns. The methods are those of
    :class:`MaskedPairs`, with positives [rows, p]; `split` and `join` may overwrite their arguments.

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
        most = MAX_GATHERED if self.columns.device.type == "cpu" else MAX_GATHERED_ON_GPU
        return few and self.columns.numel() * dim <= most

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


Pairs = MaskedPairs | ClassPairs
"""The pairs of some anchors with all references."""


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


def few_entries(gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """The rows and columns of the nonzero entries if they are few enough for :func:`add_sparse_products`, else None.

    A loss has few if most pairs satisfy its margin. On a GPU the result is None, without synchronization.
    """
    sample = gradient[::SAMPLED_ROWS]
    if gradient.device.type != "cpu" or int(sample.count_nonzero()) > MAX_FRACTION * sample.numel():
        return None
    rows, columns = gradient.nonzero(as_tuple=True)
    return (rows, columns) if len(rows) <= MAX_FRACTION * gradient.numel() else None


def add_sparse_products(
    gradient: Tensor,
    entries: tuple[Tensor, Tensor],
    anchors: Tensor,
    references: Tensor,
    totals: tuple[Tensor | None, Tensor | None],
) -> None:
    """Add `gradient @ references` and `gradient.T @ anchors` to two tensors; None skips one.

    Example:
        >>> totals = torch.zeros(2, 1), torch.zeros(3, 1)
        >>> gradient = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
        >>> entries = gradient.nonzero(as_tuple=True)
        >>> add_sparse_products(gradient, entries, torch.ones(2, 1), torch.tensor([[4.0], [5.0], [6.0]]), totals)
        >>> totals[0].flatten(), totals[1].flatten()
        (tensor([12., 18.]), tensor([0., 0., 5.]))
    """
    rows, columns = entries
    if not len(rows):
        return
    weights = gradient[rows, columns]
    if totals[0] is not None:
        totals[0].add_(weighted_sums(rows, references, columns, weights, len(gradient)))
    if totals[1] is not None:
        columns, order = columns.sort(stable=True)
        totals[1].add_(weighted_sums(columns, anchors, rows[order], weights[order], gradient.shape[1]))


def weighted_sums(groups: Tensor, vectors: Tensor, selected: Tensor, weights: Tensor, num_groups: int) -> Tensor:
    """The weighted sum of the selected vectors of each group, [num_groups, d]; groups ascend."""
    first = torch.searchsorted(groups, torch.arange(num_groups, device=groups.device))
    return F.embedding_bag(selected, vectors, first, mode="sum", per_sample_weights=weights)
