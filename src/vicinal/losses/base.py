"""What a loss is: a value of embeddings and labels that adds, scales, and says its parts.

Three classes are enough for most of the library. :class:`Loss` is the public face. :class:`PairLoss` adds a miner and
tiles. :class:`RowLoss` is a sum or mean over anchors of a function of one row of similarities, so that a new loss is a
single short method.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from vicinal import distributed
from vicinal.errors import InputError
from vicinal.mining import Miner
from vicinal.similarity import Relation, Rows, Source
from vicinal.tiles import RowTerms, check_tile_rows, sum_over_rows, values_of_rows

Reduction = Literal["sum", "anchors", "contributing", "pairs", "violating"]
"""What a loss is divided by. Each loss offers some of these, and its docstring says which one is the paper's."""


class Loss(nn.Module, ABC):
    """The loss, a function of embeddings and labels.

    Losses compose: `0.8 * A() + 0.2 * B()` is a loss too.

    Attributes:
        of_similarities: whether it sees nothing of the embeddings but their similarities, whatever these are of.
        of_lengths: whether it sees the embeddings as they are; other losses see their directions only.
        takes_references: whether it can compare embeddings with others than those of the batch.
    """

    of_similarities: ClassVar[bool] = False
    of_lengths: ClassVar[bool] = False
    takes_references: ClassVar[bool] = True

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
        *,
        relation: Relation | None = None,
        positive: Tensor | None = None,
        negative: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, against itself or against references.

        Computed in at least float32, also under autocast.

        Args:
            embeddings: float [n, d] of any length; they are L2-normalised here.
            labels: int [n], any integers; equal ones make a positive pair, unequal ones a negative pair.
            references: float [c, d], what the anchors are compared with: a memory, the embeddings of all processes.
                Default: the batch itself.
            reference_labels: int [c].
            offset: anchor i is reference `offset + i` and no pair of itself; None: no anchor is among the references.
            relation: says which pairs are positive, bool [rows, columns], from labels [rows, ...] and reference
                labels [columns, ...] of any type and shape, such as several labels an image; the others are negative.
            positive: bool [n, c], the positive pairs; instead of labels.
            negative: bool [n, c], the negative pairs. Default: all that are not positive.

        Returns:
            A scalar, the sum of :meth:`parts`.

        Raises:
            InputError: shapes, types or the offset do not fit together.

        Example:
            >>> import torch
            >>> from vicinal.losses import ContrastiveLoss
            >>> embeddings = torch.eye(3)
            >>> tags = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]])  # the first two share a tag
            >>> ContrastiveLoss()(embeddings, tags, relation=lambda a, b: (a[:, None] * b).any(dim=-1))
            tensor(0.9000)
            >>> ContrastiveLoss()(embeddings, torch.tensor([7, 7, 9]))
            tensor(0.9000)
        """
        parts = self.parts(
            embeddings,
            labels,
            references,
            reference_labels,
            offset,
            relation=relation,
            positive=positive,
            negative=negative,
        )
        return torch.stack(list(parts.values())).sum()

    def parts(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
        *,
        relation: Relation | None = None,
        positive: Tensor | None = None,
        negative: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The weighted terms that add up to the loss, by name, for logs. Arguments as in :meth:`forward`."""
        return self.parts_of(
            Source.of(
                embeddings,
                labels,
                references,
                reference_labels,
                offset,
                relation=relation,
                positive=positive,
                negative=negative,
            )
        )

    def parts_of(self, source: Source) -> dict[str, Tensor]:
        """As :meth:`parts`, of anchors and references that are normalised already."""
        with torch.autocast(source.anchors.device.type, enabled=False):
            return self._parts(source)

    def values(self, source: Source) -> Tensor:
        """The value of each anchor, [n], without gradient: how hard a sample is for the loss.

        Raises:
            InputError: the loss is of the batch as a whole.
        """
        with torch.no_grad(), torch.autocast(source.anchors.device.type, enabled=False):
            return self._values(source)

    def _values(self, source: Source) -> Tensor:
        raise InputError(f"{type(self).__name__} is of the whole batch; a loss with a value for each sample is wanted")

    @abstractmethod
    def _parts(self, source: Source) -> dict[str, Tensor]: ...

    def extra_repr(self) -> str:
        """The constructor's arguments, for `print`."""
        names = [name for name in inspect.signature(type(self)).parameters if name in self.__dict__]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def __add__(self, other: Loss) -> WeightedSum:
        return WeightedSum([self, other], [1.0, 1.0]) if isinstance(other, Loss) else NotImplemented

    def __radd__(self, other: object) -> Loss:
        return self if other == 0 else NotImplemented  # as `sum` starts with 0

    def __sub__(self, other: Loss) -> WeightedSum:
        return WeightedSum([self, other], [1.0, -1.0]) if isinstance(other, Loss) else NotImplemented

    def __neg__(self) -> WeightedSum:
        return self * -1.0

    def __truediv__(self, weight: float) -> WeightedSum:
        return self * (1 / weight)

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum([self], [weight])

    __rmul__ = __mul__


class WeightedSum(Loss):
    """A weighted sum of losses, what `+` and `*` make.

    Args:
        losses: the terms.
        weights: one number for each term.

    Raises:
        InputError: as many weights as losses are needed, at least one.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
        >>> loss = 0.5 * MultiSimilarityLoss() + 2 * MultiSimilarityLoss(miner=None)
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> list(loss.parts(embeddings, labels))
        ['MultiSimilarityLoss', 'MultiSimilarityLoss_2']
    """

    def __init__(self, losses: Sequence[Loss], weights: Sequence[float]) -> None:
        super().__init__()
        if len(losses) != len(weights) or not losses:
            raise InputError(f"WeightedSum: {len(losses)} losses and {len(weights)} weights; give one weight a loss")
        terms = [pair for loss, weight in zip(losses, weights, strict=True) for pair in _flat(loss, float(weight))]
        self.losses = nn.ModuleList(loss for loss, _ in terms)
        self.weights = [weight for _, weight in terms]

    def _parts(self, source: Source) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        for loss, weight in zip(self.losses, self.weights, strict=True):
            for name, value in cast(Loss, loss)._parts(source).items():
                parts[_unused(name, parts)] = weight * value
        return parts

    def _values(self, source: Source) -> Tensor:
        terms = zip(self.losses, self.weights, strict=True)
        return torch.stack([weight * cast(Loss, loss)._values(source) for loss, weight in terms]).sum(dim=0)


def terms_of(loss: Loss) -> list[Loss]:
    """The losses that a sum is of, or the loss itself."""
    return [cast(Loss, term) for term in loss.losses] if isinstance(loss, WeightedSum) else [loss]


def _flat(loss: Loss, weight: float) -> list[tuple[Loss, float]]:
    """Sums of sums become one sum, so that its parts carry the names of the losses."""
    if not isinstance(loss, WeightedSum):
        return [(loss, weight)]
    return [(cast(Loss, term), weight * inner) for term, inner in zip(loss.losses, loss.weights, strict=True)]


def _unused(name: str, taken: dict[str, Tensor]) -> str:
    count = sum(other == name or other.startswith(f"{name}_") for other in taken)
    return name if count == 0 else f"{name}_{count + 1}"


class PairLoss(Loss):
    """A loss of the pairs that a miner leaves, seen tile by tile.

    Args:
        miner: chooses pairs before the loss sees them; None keeps all.
        tile_rows: anchors handled at a time; memory grows with `tile_rows` x references. Default: chosen from the
            sizes. Value and gradient do not depend on it.
    """

    of_similarities = True
    calls: Tensor

    def __init__(self, miner: Miner | None = None, tile_rows: int | None = None) -> None:
        super().__init__()
        check_tile_rows(tile_rows)
        if miner is not None and not isinstance(miner, Miner):
            raise InputError(f"{type(self).__name__}: miner must be a Miner such as HardestMiner(), not {miner!r}")
        self.miner = miner
        self.tile_rows = tile_rows
        if miner is not None and miner.is_random:
            # Part of the state, so that a continued training draws what an uninterrupted one would have drawn.
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def value(self, source: Source) -> Tensor:
        """The loss of at least one anchor against at least one reference."""

    def sums(self, source: Source, row_terms: RowTerms) -> tuple[Tensor, ...]:
        """The sums over anchors of terms of the rows that the miner leaves."""
        return sum_over_rows(source, row_terms, list(self.parameters()), self.tile_rows, self.miner)

    def _parts(self, source: Source) -> dict[str, Tensor]:
        zero = zero_or_nan(source)
        if len(source) == 0 or source.columns == 0:
            return {type(self).__name__: zero}
        if self.miner is not None and self.miner.is_random:
            self.calls += 1
            source = replace(source, call=self.calls.clone())
        return {type(self).__name__: self.value(source) + zero.detach()}


def zero_or_nan(source: Source) -> Tensor:
    """0 with a zero gradient, or NaN where an embedding is broken.

    Comparisons, such as a miner's, are false for NaN and would make a broken embedding look like no pair at all.
    """
    zero = 0 * source.anchors.sum()
    return zero if source.references is source.anchors else zero + 0 * source.references.sum()


class RowLoss(PairLoss):
    """A sum or mean over anchors of a function of one row of similarities.

    A new loss is one method, :meth:`row_values`. The reductions it offers:

    - "sum": the sum over anchors.
    - "anchors": the mean over all anchors, also those with no pair left, which add 0.
    - "contributing": the mean over the anchors that have the pairs it takes to contribute.

    Args:
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: see above.
        tile_rows: anchors handled at a time; memory grows with `tile_rows` x references. Default: chosen from the
            sizes. Value and gradient do not depend on it.
    """

    reductions: ClassVar[tuple[str, ...]] = ("sum", "anchors", "contributing")

    def __init__(
        self, miner: Miner | None = None, reduction: Reduction = "anchors", tile_rows: int | None = None
    ) -> None:
        super().__init__(miner, tile_rows)
        if reduction not in self.reductions:
            offered = " or ".join(f'"{name}"' for name in self.reductions)
            raise InputError(f"{type(self).__name__}: reduction = {reduction!r} must be {offered}")
        self.reduction = reduction

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """One value an anchor, [rows]; 0 with a zero gradient for an anchor without pairs."""

    def contributes(self, rows: Rows) -> Tensor:
        """Whether an anchor has the pairs that it takes to contribute, bool [rows]."""
        return rows.has_positives | rows.has_negatives

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        """What is summed over anchors before :meth:`reduce`: values first, then what they are divided by, if anything.

        Here the values of :meth:`row_values`, and for the mean over contributing anchors whether each is one.
        """
        values = self.row_values(rows)
        return (values, self.contributes(rows)) if self.reduction == "contributing" else (values,)

    def reduce(self, sums: Sequence[Tensor], source: Source) -> Tensor:
        """The loss from the sums over anchors of :meth:`row_terms`."""
        if self.reduction == "sum":
            # The mean over processes is to be the sum over all of them.
            return sums[0] * (distributed.world_size() if source.shared else 1)
        return sums[0] / source.mean_length if self.reduction == "anchors" else mean_over(sums[0], sums[1], source)

    def value(self, source: Source) -> Tensor:
        return self.reduce(self.sums(source, self.row_terms), source)

    def _values(self, source: Source) -> Tensor:
        return values_of_rows(source, self.row_values, self.tile_rows, self.miner)


def mean_over(total: Tensor, count: Tensor, source: Source) -> Tensor:
    """A sum over these anchors divided by a count, over those of all processes; 0 if nothing was counted."""
    count = count.to(total.dtype)
    # The mean over processes of `sum / mean count` is the sum over all anchors by the count of all.
    return total / (distributed.mean(count) if source.shared else count).clamp_min(1 / distributed.world_size())
