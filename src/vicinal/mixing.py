"""SiMix: virtual examples between the examples of a class, of which only the similarities are ever made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_at_least_one, check_not_negative
from vicinal.errors import InputError
from vicinal.losses.base import Loss, PairLoss, terms_of
from vicinal.pair_layout import Pairs
from vicinal.seeds import uniform
from vicinal.similarity import Source

__all__ = ["SiMix"]

MOST_EXAMPLES = 2**20
"""Examples, virtual ones included, beyond which no batch makes sense."""


class SiMix(Loss):
    """Similarity mixup: a loss of a batch that is extended by virtual examples, `a x + (1 - a) z` for every pair of
    examples x, z of one class, with a drawn from U(0, 1) for each.

    Virtual examples are queries and are ranked, like all others and with the label of their class. They are not
    normalised, so their similarities are mixtures of those between the given examples, and no embedding of theirs is
    ever made: 4 examples of a class make 6 virtual ones, and 4,096 examples 10,240. With references, such as a memory,
    virtual ones are made among them as among the anchors.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Section 3.3, Eq. (8) to (10).

    Args:
        loss: any loss of the library that is a function of similarities, or a sum of such.
        per_class: how many virtual examples a class has, drawn from its pairs; None: one for every pair.
        seed: of what is drawn; it changes from call to call.

    Raises:
        InputError: the loss has more to it than similarities, such as a memory (which can have a SiMix instead);
            when called: pairs are given by masks or a relation, or classes are so large that there are more than
            2**20 examples.

    Example:
        >>> from vicinal.losses import RecallAtKLoss
        >>> loss = SiMix(RecallAtKLoss(k=1))
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2831)
    """

    calls: Tensor

    def __init__(self, loss: Loss, per_class: int | None = None, seed: int = 0) -> None:
        super().__init__()
        check_at_least_one(self, per_class=per_class)
        check_not_negative(self, seed=seed)
        for term in terms_of(loss):
            if not isinstance(term, PairLoss):
                raise InputError(
                    f"SiMix: {type(term).__name__} is no function of similarities alone; wrap what is in it"
                )
        self.loss = loss
        self.per_class = per_class
        self.seed = seed
        # Part of the state, so that a continued training draws what an uninterrupted one would have drawn.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how many examples there are depends on the labels
    def _parts(self, source: Source) -> dict[str, Tensor]:
        if source.masks is not None or source.relation is not None:
            raise InputError("SiMix: examples of one class are mixed; give labels, not masks or a relation")
        self.calls += 1
        return self.loss._parts(self._mixed(source))

    def _mixed(self, source: Source) -> MixedSource:
        """The source extended by virtual examples on both sides."""
        return self._apart(source) if source.offset is None else self._around(source)

    def _apart(self, source: Source) -> MixedSource:
        """No anchor is among the references: each side has virtual examples of its own."""
        vectors, labels, _ = _by_class(source.anchors, source.labels)
        anchors = Side(vectors, labels, self._mixture(labels, draw=1))
        vectors, labels, _ = _by_class(source.references, source.reference_labels)
        references = Side(vectors, labels, self._mixture(labels))
        return MixedSource.of_sides(source, anchors, references, offset=None, all_anchors=len(anchors.mixture))

    def _around(self, source: Source) -> MixedSource:
        """The anchors are among the references, as are those of other processes; what is mixed of two is an anchor."""
        vectors, labels, order = _by_class(source.references, source.reference_labels)
        begin, end = _batch_of(source)
        is_anchor = (order >= begin) & (order < end)
        mixture = self._mixture(labels)
        of_two_anchors = is_anchor[mixture.first] & is_anchor[mixture.second]
        mixture = mixture[of_two_anchors.logical_not().sort(stable=True).indices]  # the anchors first
        count = int(of_two_anchors.sum())
        first, last = _share_of_process(count) if source.shared else (0, count)
        anchors, references = Side(vectors, labels, mixture[first:last]), Side(vectors, labels, mixture)
        if source.references is not source.anchors and not source.shared:
            anchors = _of_tensor(source.anchors, order - begin, is_anchor, anchors)
        return MixedSource.of_sides(source, anchors, references, first, all_anchors=count)

    def _mixture(self, labels: Tensor, draw: int = 0) -> Mixture:
        """All examples, given ones too, of vectors whose labels are in order; `draw` tells apart those of one call."""
        _check_number(labels, self.per_class)
        first, second = _pairs_within(labels)
        keys = (self.calls.to(labels.device) << 32) + torch.arange(len(first), device=labels.device)
        share, choice = uniform(self.seed, keys, 4)[:, 2 * draw : 2 * draw + 2].unbind(1)
        given = first == second
        mixture = Mixture(first, second, torch.where(given, 1.0, share))
        if self.per_class is None:
            return mixture
        return mixture[given | _among_lowest(choice.masked_fill(given, 2.0), labels[first], self.per_class)]


def _by_class(vectors: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors and labels in the order of the labels, and where each stood."""
    assert labels is not None
    order = labels.argsort(stable=True)
    return vectors[order], labels[order], order


def _batch_of(source: Source) -> tuple[int, int]:
    """From where to where the anchors of all processes are among the references."""
    assert source.offset is not None
    if not source.shared:
        return source.offset, source.offset + len(source)
    begin = source.offset - distributed.rank() * len(source)
    return begin, begin + distributed.world_size() * len(source)


def _of_tensor(anchors: Tensor, place: Tensor, is_anchor: Tensor, side: Side) -> Side:
    """The side with its vectors from a tensor of their own, in which each stands at its place."""
    row, mixture = is_anchor.cumsum(0) - 1, side.mixture
    of_anchors = replace(mixture, first=row[mixture.first], second=row[mixture.second])
    return Side(anchors[place[is_anchor]], side.labels[is_anchor], of_anchors)


def _share_of_process(examples: int) -> tuple[int, int]:
    rank, world = distributed.rank(), distributed.world_size()
    return examples * rank // world, examples * (rank + 1) // world


def _check_number(labels: Tensor, per_class: int | None) -> None:
    sizes = labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    mixtures = sizes * (sizes - 1) // 2
    examples = len(labels) + int((mixtures if per_class is None else mixtures.clamp_max(per_class)).sum())
    if examples > MOST_EXAMPLES:
        raise InputError(
            f"SiMix: {len(labels)} examples and their mixtures would be {examples}, more than {MOST_EXAMPLES}; give a "
            "smaller number of mixtures of each class, per_class"
        )


def _pairs_within(labels: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs i <= j of equal labels, which are in order; sorted by i, then by j."""
    place = torch.arange(len(labels), device=labels.device)
    partners = torch.searchsorted(labels.long(), labels.long(), right=True) - place  # itself, and those behind it
    first = place.repeat_interleave(partners)
    begin = partners.cumsum(0) - partners
    second = first + torch.arange(len(first), device=labels.device) - begin[first]
    return first, second


def _among_lowest(values: Tensor, labels: Tensor, count: int) -> Tensor:
    """Whether a value is among so many lowest of its label, bool [m]; labels are in order."""
    order = values.argsort()
    order = order[labels[order].argsort(stable=True)]
    begin = torch.searchsorted(labels.long(), labels.long())
    lowest = torch.empty_like(labels, dtype=torch.bool)
    lowest[order] = torch.arange(len(labels), device=labels.device) - begin < count
    return lowest


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

    def mixed(self, rows: Tensor) -> Tensor:
        """The examples from the vectors, the rows of [n, ...]: [m, ...]."""
        return torch.lerp(rows[self.second], rows[self.first], self.share[:, None])

    def mixed_columns(self, columns: Tensor) -> Tensor:
        """As :meth:`mixed`, of the columns of [rows, n]: [rows, m]."""
        return torch.lerp(columns.index_select(1, self.second), columns.index_select(1, self.first), self.share)

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
    """The anchors or the references: vectors in the order of their classes, their labels, and what is made of them."""

    vectors: Tensor
    labels: Tensor
    mixture: Mixture


@dataclass(frozen=True, kw_only=True)
class MixedSource(Source):
    """A source whose anchors and references are mixtures of the vectors in their place.

    Attributes:
        of_anchors: the anchors, in the order of the vectors that they are made of.
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

    def similarity(self, start: int, stop: int) -> Tensor:
        first, last, mixture = self._vectors_of(start, stop)
        return self.of_references.mixed_columns(mixture.mixed(super().similarity(first, last)))

    def add_gradient(
        self,
        totals: Sequence[Tensor],
        by_positives: Tensor | None,
        by_negatives: Tensor | None,
        pairs: Pairs,
        start: int,
        stop: int,
    ) -> None:
        first, last, mixture = self._vectors_of(start, stop)
        by_rows = self.of_references.unmixed_columns(pairs.join(by_positives, by_negatives), len(self.references))
        self._add_products(totals, mixture.unmixed(by_rows, last - first), first, last)

    def _vectors_of(self, start: int, stop: int) -> tuple[int, int, Mixture]:
        """From where to where the vectors stand that these anchors are made of, and how, counted from there."""
        mixture = self.of_anchors[start:stop]
        first, last = int(mixture.first.amin()), int(mixture.second.amax()) + 1
        return first, last, replace(mixture, first=mixture.first - first, second=mixture.second - first)
