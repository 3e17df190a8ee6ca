"""A pair source whose anchors and references are mixtures of two vectors each; only their similarities are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import ClassColumns
from vicinal.utils import distributed
from vicinal.utils.errors import InputError


class WeightedSums(NamedTuple):
    """Weighted sums of the rows of a tensor.

    Attributes:
        first: int [s], where the terms of each sum begin.
        rows: int [terms].
        weights: float [terms].
    """

    first: Tensor
    rows: Tensor
    weights: Tensor

    def to(self, x: Tensor) -> WeightedSums:
        """Return the same on the device of a tensor, with weights of its type."""
        first, rows = (each.to(x.device, non_blocking=True) for each in (self.first, self.rows))
        return WeightedSums(first, rows, self.weights.to(x, non_blocking=True))

    def apply(self, x: Tensor) -> Tensor:
        """Sum rows of [n, k]: [s, k]."""
        return F.embedding_bag(self.rows, x, self.first, per_sample_weights=self.weights, mode="sum")


@dataclass(frozen=True)
class Mixture:
    """Convex combinations `coefficient * x_first + (1 - coefficient) * x_second` of the rows x of a tensor.

    A row itself is a mixture with `first == second`. Mixtures are planned on the CPU, where their number is known.

    Attributes:
        first: int [m].
        second: int [m].
        coefficient: float [m], in [0, 1].
    """

    first: Tensor
    second: Tensor
    coefficient: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, selected: slice | Tensor) -> Mixture:
        return Mixture(self.first[selected], self.second[selected], self.coefficient[selected])

    def to(self, x: Tensor) -> Mixture:
        """Return the mixture on the device of a tensor, with coefficients of its type."""
        first, second = (rows.to(x.device, non_blocking=True) for rows in (self.first, self.second))
        return Mixture(first, second, self.coefficient.to(x, non_blocking=True))

    def without_unused_rows(self) -> tuple[Tensor, Mixture]:
        """Return the rows that are mixed, ascending, and the same mixture of these rows alone."""
        rows, inverse = torch.cat([self.first, self.second]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        first, second = inverse.view(2, -1)
        return rows, replace(self, first=first, second=second)

    def row_sums(self) -> WeightedSums:
        """The sums that mix the rows of [n, k]: [m, k]."""
        rows, weights = self._terms()
        return WeightedSums(torch.arange(0, 2 * len(self), 2), rows, weights)

    def row_sums_backward(self, n: int) -> WeightedSums:
        """The sums that compute the gradient with respect to the n rows, from that with respect to the mixed rows."""
        rows, weights = self._terms()
        rows, order = rows.sort(stable=True)
        return WeightedSums(torch.searchsorted(rows, torch.arange(n)), order // 2, weights[order])

    def _terms(self) -> tuple[Tensor, Tensor]:
        """The rows of all mixtures and their weights, two adjacent ones per mixture, [2 m] each."""
        rows = torch.stack([self.first, self.second], dim=1)
        return rows.flatten(), torch.stack([self.coefficient, 1 - self.coefficient], dim=1).flatten()

    def mix_columns(self, x: Tensor) -> Tensor:
        """Mix the columns of [rows, n]: [rows, m]."""
        return torch.lerp(x.index_select(1, self.second), x.index_select(1, self.first), self.coefficient)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all m mixtures of the rows of [n, ...]: [...]."""
        weights = x.new_zeros(len(x)).index_add_(0, self.first, self.coefficient)
        return weights.index_add_(0, self.second, 1 - self.coefficient) @ x


class MixedExamples(NamedTuple):
    """Vectors [n, d], their labels [n], and m mixtures of them. Both rows of a mixture have the same label.

    Labels and mixtures are on the CPU.
    """

    vectors: Tensor
    labels: Tensor
    mixture: Mixture


@dataclass(frozen=True, kw_only=True)
class MixedPairSource(PairSource):
    """A pair source of mixtures of the vectors in `anchors` and of those in `references`.

    Attributes:
        anchor_mixture: the anchors, on the CPU. Neighboring ones should have vectors in common.
        reference_mixture: the references, on the CPU.
        total_anchors: number of anchors of all processes together.
        max_class_size: number of references of the largest class.
    """

    anchor_mixture: Mixture
    reference_mixture: Mixture
    total_anchors: int
    max_class_size: int

    allows_sparse_gradient: ClassVar[bool] = False

    @classmethod
    def from_examples(
        cls,
        source: PairSource,
        anchors: MixedExamples,
        references: MixedExamples,
        offset: int | None,
        total_anchors: int,
    ) -> MixedPairSource:
        """Mix the anchors and the references of a source; mixed anchor i is mixed reference `offset + i`."""
        labels, reference_labels = (side.labels[side.mixture.first] for side in (anchors, references))
        device = source.anchors.device
        return cls(
            anchors=anchors.vectors,
            references=references.vectors,
            labels=labels.to(device, non_blocking=True),
            reference_labels=reference_labels.to(device, non_blocking=True),
            offset=offset,
            is_distributed=source.is_distributed,
            num_calls=source.num_calls,
            anchor_mixture=anchors.mixture,
            reference_mixture=references.mixture,
            total_anchors=total_anchors,
            max_class_size=_largest_count(reference_labels),
        )

    def __len__(self) -> int:
        return len(self.anchor_mixture)

    @property
    def num_references(self) -> int:
        return len(self.reference_mixture)

    @property
    def mean_num_anchors(self) -> float:
        return self.total_anchors / distributed.world_size() if self.is_distributed else len(self)

    @cached_property
    def class_columns(self) -> ClassColumns:
        assert self.labels is not None
        assert self.reference_labels is not None
        return ClassColumns(self.reference_labels, self.labels, self.max_class_size)

    @cached_property
    def _columns(self) -> Mixture:
        """The references, on the device."""
        return self.reference_mixture.to(self.references)

    @cached_property
    def _columns_backward(self) -> WeightedSums:
        return self.reference_mixture.row_sums_backward(len(self.references)).to(self.references)

    def _rows(self, span: slice) -> tuple[Tensor, Mixture]:
        """The rows of `anchors` that a span of the anchors mixes, on the device, and the mixtures of these rows."""
        rows, mixture = self.anchor_mixture[span].without_unused_rows()
        return rows.to(self.anchors.device, non_blocking=True), mixture

    def references_as_batch(self) -> PairSource:
        if self.offset is None:
            return super().references_as_batch()
        if self.anchors.requires_grad and not self.references.requires_grad:
            raise InputError("mixtures of references without gradient cannot be trained on; give them undetached")
        return replace(
            self,
            anchors=self.references,
            labels=self.reference_labels,
            anchor_mixture=self.reference_mixture,
            total_anchors=self.num_references,
            offset=0,
            is_distributed=False,
        )

    def mean_similarity(self) -> Tensor:
        anchors, references = self.anchor_mixture.to(self.anchors).sum(self.anchors), self._columns.sum(self.references)
        return anchors @ references / (self.mean_num_anchors * self.num_references)

    def similarity(self, span: slice) -> Tensor:
        rows, mixture = self._rows(span)
        # Mix columns first, while there are fewer rows: selecting columns takes longer than selecting rows.
        mixed = self._columns.mix_columns(self.anchors[rows] @ self.references.T)
        return mixture.row_sums().to(mixed).apply(mixed)

    def add_gradient(self, totals: Sequence[Tensor], span: slice, grad_similarity: Tensor) -> None:
        rows, mixture = self._rows(span)
        gradient = mixture.row_sums_backward(len(rows)).to(grad_similarity).apply(grad_similarity)
        gradient = self._columns_backward.apply(gradient.T.contiguous()).T
        if self.anchors.requires_grad:
            totals[0].index_add_(0, rows, gradient @ self.references.detach())
        if self.references.requires_grad:
            totals[-1].addmm_(gradient.T, self.anchors[rows].detach())


def _largest_count(labels: Tensor) -> int:
    """The number of times that the most frequent label occurs, at least 1."""
    counts = labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    return int(counts.amax()) if len(counts) else 1
