"""Anchors and references that are mixtures of two vectors each, of which only the similarities are ever made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.errors import InputError
from vicinal.pair_layout import Pairs
from vicinal.similarity import Source


@dataclass(frozen=True)
class Mixture:
    """Examples that are made of two vectors each, or that are one, where both are the same.

    Attributes:
        first: int [m], a vector of each.
        second: int [m], the other one.
        share: float [m], how much the first has in it.
    """

    first: Tensor
    second: Tensor
    share: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, chosen: slice | Tensor) -> Mixture:
        return Mixture(self.first[chosen], self.second[chosen], self.share[chosen])

    def to(self, dtype: torch.dtype) -> Mixture:
        """With shares of another type."""
        return replace(self, share=self.share.to(dtype))

    def of_fewer(self) -> tuple[Tensor, Mixture]:
        """The vectors that take part, in order, and the same examples as made of those alone."""
        taking_part, places = torch.cat([self.first, self.second]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        first, second = places.view(2, -1)
        return taking_part, replace(self, first=first, second=second)

    def mixed(self, rows: Tensor) -> Tensor:
        """The examples from the vectors, the rows of [n, ...]: [m, ...]."""
        return torch.lerp(rows[self.second], rows[self.first], self.share[:, None])

    def mixed_columns(self, columns: Tensor) -> Tensor:
        """As :meth:`mixed`, of the columns of [rows, n]: [rows, m]."""
        return torch.lerp(columns.index_select(1, self.second), columns.index_select(1, self.first), self.share)

    def sum(self, rows: Tensor) -> Tensor:
        """The sum of all examples, [...], of vectors [n, ...]."""
        weights = rows.new_zeros(len(rows)).index_add_(0, self.first, self.share)
        return weights.index_add_(0, self.second, 1 - self.share) @ rows

    def unmixed(self, by_rows: Tensor, rows: int) -> Tensor:
        """The gradient by the vectors, [rows, ...], from that by the examples."""
        total = by_rows.new_zeros(rows, *by_rows.shape[1:])
        total.index_add_(0, self.first, by_rows * self.share[:, None])
        return total.index_add_(0, self.second, by_rows * (1 - self.share)[:, None])

    def unmixed_columns(self, by_columns: Tensor, columns: int) -> Tensor:
        """As :meth:`unmixed`, of [rows, m]: [rows, columns]."""
        total = by_columns.new_zeros(len(by_columns), columns)
        total.index_add_(1, self.first, by_columns * self.share)
        return total.index_add_(1, self.second, by_columns * (1 - self.share))


class Side(NamedTuple):
    """The anchors or the references: vectors, their labels, and the examples that are made of them."""

    vectors: Tensor
    labels: Tensor
    mixture: Mixture


@dataclass(frozen=True, kw_only=True)
class MixedSource(Source):
    """A source whose anchors and references are mixtures of the vectors in their place.

    Attributes:
        of_anchors: the anchors. Those near each other should have vectors in common.
        of_references: the references.
        all_anchors: how many anchors there are, of all processes together.
    """

    of_anchors: Mixture
    of_references: Mixture
    all_anchors: int

    @classmethod
    def of_sides(
        cls, source: Source, anchors: Side, references: Side, offset: int | None, all_anchors: int
    ) -> MixedSource:
        """The mixtures of a source's two sides; anchor i is reference `offset + i`."""
        return cls(
            anchors=anchors.vectors,
            references=references.vectors,
            labels=anchors.labels[anchors.mixture.first],
            reference_labels=references.labels[references.mixture.first],
            offset=offset,
            shared=source.shared,
            call=source.call,
            of_anchors=anchors.mixture.to(anchors.vectors.dtype),
            of_references=references.mixture.to(references.vectors.dtype),
            all_anchors=all_anchors,
        )

    def __len__(self) -> int:
        return len(self.of_anchors)

    @property
    def columns(self) -> int:
        return len(self.of_references)

    @property
    def mean_length(self) -> float:
        return self.all_anchors / distributed.world_size() if self.shared else len(self)

    def among_references(self) -> Source:
        if self.offset is None:
            return super().among_references()
        if self.anchors.requires_grad and not self.references.requires_grad:
            raise InputError("mixtures of references that carry no gradient teach nothing here; give them undetached")
        return replace(
            self,
            anchors=self.references,
            labels=self.reference_labels,
            of_anchors=self.of_references,
            all_anchors=self.columns,
            offset=0,
            shared=False,
        )

    def mean_similarity(self) -> Tensor:
        totals = self.of_anchors.sum(self.anchors), self.of_references.sum(self.references)
        return totals[0] @ totals[1] / (self.mean_length * self.columns)

    def similarity(self, start: int, stop: int) -> Tensor:
        rows, mixture = self.of_anchors[start:stop].of_fewer()
        return self.of_references.mixed_columns(mixture.mixed(self.anchors[rows] @ self.references.T))

    def add_gradient(
        self,
        totals: Sequence[Tensor],
        by_positives: Tensor | None,
        by_negatives: Tensor | None,
        pairs: Pairs,
        start: int,
        stop: int,
    ) -> None:
        rows, mixture = self.of_anchors[start:stop].of_fewer()
        by_examples = self.of_references.unmixed_columns(pairs.join(by_positives, by_negatives), len(self.references))
        by_vectors = mixture.unmixed(by_examples, len(rows))
        if self.anchors.requires_grad:
            totals[0].index_add_(0, rows, by_vectors @ self.references.detach())
        if self.references.requires_grad:
            totals[-1].addmm_(by_vectors.T, self.anchors[rows].detach())
