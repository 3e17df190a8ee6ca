"""Batches on which pair losses tend to go wrong; every loss is tested on all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """The arguments of a loss: `loss(*batch)`."""

    embeddings: Tensor
    labels: Tensor
    references: Tensor | None = None
    reference_labels: Tensor | None = None
    offset: int | None = None

    def to(self, dtype: torch.dtype) -> Batch:
        """The same numbers in another type."""
        references = None if self.references is None else self.references.to(dtype)
        return self._replace(embeddings=self.embeddings.to(dtype), references=references)

    def with_classes(self) -> Batch:
        """The same batch with the labels 0, 1, 2, ..."""
        if self.reference_labels is None:
            return self._replace(labels=self.labels.unique(return_inverse=True)[1])
        dense = torch.cat([self.labels, self.reference_labels]).unique(return_inverse=True)[1]
        n = len(self.labels)
        return self._replace(labels=dense[:n], reference_labels=dense[n:])


def nasty_batches() -> dict[str, Batch]:
    """Name -> batch of float64 embeddings; those named "references ..." are compared with others than themselves."""
    generator = torch.Generator().manual_seed(0)

    def random(n: int, d: int = 5) -> Tensor:
        return torch.randn(n, d, generator=generator, dtype=torch.float64)

    def classes(*labels: int) -> Tensor:
        return torch.tensor(labels)

    one, whole = random(1), random(12)
    unequal = classes(0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3)
    thirty = torch.arange(30).div(3, rounding_mode="floor")[torch.randperm(30, generator=generator)]
    return {
        "unequal classes": Batch(random(12), unequal),
        "shuffled": Batch(random(12), classes(2, 0, 1, 0, 3, 2, 1, 1, 0, 3, 2, 0)),
        "many classes": Batch(random(30, 8), thirty),
        "singletons": Batch(random(6), classes(5, 9, 9, 7, 9, 6)),
        "all singletons": Batch(random(4), torch.arange(4)),
        "one class": Batch(random(5), torch.zeros(5, dtype=torch.int64)),
        "two of a class": Batch(random(2), classes(3, 3)),
        "two of two classes": Batch(random(2), classes(3, 4)),
        "one sample": Batch(random(1), classes(1)),
        "duplicates": Batch(torch.cat([one, one, one, random(3)]), classes(0, 0, 1, 1, 2, 2)),
        "collapsed": Batch(one.repeat(6, 1), classes(0, 0, 1, 1, 2, 2)),
        "zero vector": Batch(torch.cat([0 * one, random(5)]), classes(0, 0, 1, 1, 2, 2)),
        "far labels": Batch(random(6), classes(-7, -7, 2**40, 2**40, 0, 2**40 + 1)),
        "one dimension": Batch(random(6, 1), classes(0, 0, 1, 1, 2, 2)),
        "opposites": Batch(torch.cat([random(3), -random(3)]), classes(0, 1, 2, 0, 1, 2)),
        "references around the batch": Batch(whole[4:9], unequal[4:9], whole, unequal, 4),
        "references beside the batch": Batch(random(6), classes(0, 0, 1, 2, 2, 2), random(8), unequal[2:10]),
        "references lack a class": Batch(random(4), classes(0, 4, 1, 9), random(5), classes(0, 0, 1, 5, 5)),
        "references of one class": Batch(random(3), classes(0, 0, 1), random(4), classes(0, 0, 0, 0)),
    }


LOOSE_DISTANCES = ("duplicates", "collapsed")
"""Where distances of equal vectors enter: as roots of `2 - 2 s`, they are known to the root of the precision only."""


def realistic_batch() -> Batch:
    """16 classes of 4 around centers of their own, so that there are easy and hard pairs; float64 [64, 32]."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(64) // 4
    centers = torch.randn(16, 32, generator=generator, dtype=torch.float64)
    return Batch(centers[labels] + 0.7 * torch.randn(64, 32, generator=generator, dtype=torch.float64), labels)
