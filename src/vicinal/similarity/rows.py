"""Rows of a similarity matrix, split into positives and negatives."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


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
        dim: dimension of the embeddings; int [rows, 1] where it is not the same for all rows.
        positive_weights: float [rows, p], how much each positive counts, as with mixed examples; 0 for padding. None:
            each counts as one. Only losses with `supports_weights` read it.
        negative_weights: float [rows, q], the same for the negatives.
    """

    positives: Tensor
    negatives: Tensor
    labels: Tensor | None
    keys: Tensor
    dim: int | Tensor
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
