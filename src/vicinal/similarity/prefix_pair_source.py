"""A pair source of several prefixes of the same embeddings, whose rows are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.pairs import ClassColumns, Pairs
from vicinal.similarity.rows import Rows

FIELDS = tuple(field.name for field in fields(PairSource))  # a constant, which torch.compile can read


class RepeatedPairs(NamedTuple):
    """The pairs of some anchors, and the same for every prefix."""

    single: Pairs
    repeated: Pairs

    @property
    def positive(self) -> Tensor:
        return self.repeated.positive

    def repeat(self, times: int) -> Pairs:
        return self.repeated.repeat(times)

    def split(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        return self.repeated.split(similarity)

    def join(self, grad_positives: Tensor | None, grad_negatives: Tensor | None) -> Tensor:
        return self.repeated.join(grad_positives, grad_negatives)


@dataclass(frozen=True, kw_only=True)
class PrefixPairSource(PairSource):
    """Prefixes of embeddings. A span of anchors has their rows by the first prefix, then those by the second, ...

    So a loss is called once for all prefixes, and the pairs are found once. What is summed over anchors has one entry
    per prefix.

    Attributes:
        prefixes: the source of each prefix.
    """

    prefixes: tuple[PairSource, ...]

    @classmethod
    def from_source(cls, source: PairSource, dims: Sequence[int]) -> PrefixPairSource:
        """Cut and normalize the prefixes of these dimensions.

        Example:
            >>> source = PairSource.from_batch(torch.eye(3), torch.tensor([7, 7, 9]))
            >>> PrefixPairSource.from_source(source, [1, 3]).similarity(slice(0, 1))
            tensor([[1., 0., 0.],
                    [1., 0., 0.]])
        """
        kept = {name: getattr(source, name) for name in FIELDS}
        return cls(**kept, prefixes=tuple(source.prefix(dim) for dim in dims))

    @property
    def rows_per_anchor(self) -> int:
        return len(self.prefixes)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for prefix in self.prefixes for tensor in prefix.inputs)

    def similarity(self, span: slice) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.cat([prefix.similarity(span) for prefix in self.prefixes])
        size = span.stop - span.start  # written where they belong, which saves a copy
        similarity = self.anchors.new_empty(len(self.prefixes) * size, self.num_references)
        for part, prefix in zip(torch.split(similarity, size), self.prefixes, strict=True):
            torch.mm(prefix.anchors[span], prefix.references.T, out=part)
        return similarity

    def pairs(self, span: slice, class_columns: ClassColumns | None = None) -> RepeatedPairs:
        pairs = super().pairs(span, class_columns)
        return RepeatedPairs(pairs, pairs.repeat(len(self.prefixes)))

    def rows(self, span: slice, similarity: Tensor, pairs: Pairs) -> Rows:
        rows, times = super().rows(span, similarity, pairs), len(self.prefixes)
        labels = None if rows.labels is None else rows.labels.repeat(times, *[1] * (rows.labels.ndim - 1))
        dims = torch.tensor([prefix.dim for prefix in self.prefixes], device=similarity.device)
        dim = dims.repeat_interleave(len(rows.keys))[:, None]
        return rows._replace(labels=labels, keys=rows.keys.repeat(times), dim=dim)

    def sum_of(self, term: Tensor) -> Tensor:
        return term.view(len(self.prefixes), -1, *term.shape[1:]).sum(1)

    def upstream_of_input(self, upstream: Tensor, i: int) -> Tensor:
        return upstream[i // len(self.prefixes[0].inputs)]

    def add_pair_gradient(
        self,
        totals: Sequence[Tensor],
        span: slice,
        pairs: Pairs,
        grad_positives: Tensor | None,
        grad_negatives: Tensor | None,
    ) -> None:
        assert isinstance(pairs, RepeatedPairs)
        times, size = len(self.prefixes), len(self.prefixes[0].inputs)
        gradients = ([None] * times if part is None else part.chunk(times) for part in (grad_positives, grad_negatives))
        for i, (prefix, positives, negatives) in enumerate(zip(self.prefixes, *gradients, strict=True)):
            prefix.add_pair_gradient(totals[i * size : (i + 1) * size], span, pairs.single, positives, negatives)
