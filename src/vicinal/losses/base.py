"""What a loss is: a value of embeddings and labels that adds, scales, and says its parts.

Two classes are enough for most of the library. :class:`Loss` is the public face. :class:`RowLoss` is a loss that is a
mean over anchors of a function of one row of similarities, so that a new one is a single short method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from vicinal import distributed
from vicinal.errors import InputError
from vicinal.mining import Miner
from vicinal.similarity import Rows, Source, check_tile_rows, sum_over_rows

Reduction = Literal["anchors", "contributing"]


class Loss(nn.Module, ABC):
    """The loss, a function of embeddings and labels.

    Losses compose: `0.8 * A() + 0.2 * B()` is a loss too.
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
    ) -> Tensor:
        """The loss of a batch, against itself or against references.

        Computed in at least float32, also under autocast.

        Args:
            embeddings: float [n, d] of any length; they are L2-normalised here.
            labels: int [n], any integers.
            references: float [c, d], what the anchors are compared with: a memory, the embeddings of all processes.
                Default: the batch itself.
            reference_labels: int [c].
            offset: anchor i is reference `offset + i` and no pair of itself; None: no anchor is among the references.

        Returns:
            A scalar, the sum of :meth:`parts`.

        Raises:
            InputError: shapes, types or the offset do not fit together.
        """
        parts = self.parts(embeddings, labels, references, reference_labels, offset)
        return torch.stack(list(parts.values())).sum()

    def parts(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
    ) -> dict[str, Tensor]:
        """The weighted terms that add up to the loss, by name, for logs. Arguments as in :meth:`forward`."""
        return self.parts_of(Source.of(embeddings, labels, references, reference_labels, offset))

    def parts_of(self, source: Source) -> dict[str, Tensor]:
        """As :meth:`parts`, of anchors and references that are normalised already."""
        with torch.autocast(source.anchors.device.type, enabled=False):
            return self._parts(source)

    @abstractmethod
    def _parts(self, source: Source) -> dict[str, Tensor]: ...

    def __add__(self, other: Loss) -> WeightedSum:
        return WeightedSum([self, other], [1.0, 1.0])

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


def _flat(loss: Loss, weight: float) -> list[tuple[Loss, float]]:
    """Sums of sums become one sum, so that its parts carry the names of the losses."""
    if not isinstance(loss, WeightedSum):
        return [(loss, weight)]
    return [(cast(Loss, term), weight * inner) for term, inner in zip(loss.losses, loss.weights, strict=True)]


def _unused(name: str, taken: dict[str, Tensor]) -> str:
    count = sum(other == name or other.startswith(f"{name}_") for other in taken)
    return name if count == 0 else f"{name}_{count + 1}"


class RowLoss(Loss):
    """A mean over anchors of a function of one row of similarities and its masks.

    Args:
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "anchors" is the mean over all anchors, also those with no pair left (they add 0);
            "contributing" the mean over the anchors that have a pair left.
        tile_rows: anchors handled at a time; memory grows with `tile_rows` x references. Default: chosen from the
            sizes. Value and gradient do not depend on it.
    """

    def __init__(
        self, miner: Miner | None = None, reduction: Reduction = "anchors", tile_rows: int | None = None
    ) -> None:
        super().__init__()
        if reduction not in ("anchors", "contributing"):
            raise InputError(f'{type(self).__name__}: reduction = {reduction!r} must be "anchors" or "contributing"')
        check_tile_rows(tile_rows)
        self.miner = miner
        self.reduction = reduction
        self.tile_rows = tile_rows

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """One value an anchor, [rows]; 0 with a zero gradient for an anchor without pairs."""

    def _parts(self, source: Source) -> dict[str, Tensor]:
        # Comparisons, such as a miner's, are false for NaN and would make a broken embedding look like no pair at all.
        zero_or_nan = 0 * (source.anchors.sum() + source.references.sum())
        if len(source) == 0 or len(source.references) == 0:
            return {type(self).__name__: zero_or_nan}
        total, *contributing = sum_over_rows(source, self._terms, list(self.parameters()), self.tile_rows)
        return {type(self).__name__: total / self._count(source, contributing) + zero_or_nan.detach()}

    def _count(self, source: Source, contributing: list[Tensor]) -> Tensor | int:
        """What the sum over anchors is divided by."""
        if not contributing:
            return len(source)
        count = contributing[0].float()
        # The mean over processes of `sum / mean count` is the sum over all anchors by the count of all.
        return (distributed.mean(count) if source.shared else count).clamp_min(1 / distributed.world_size())

    def _terms(self, rows: Rows) -> tuple[Tensor, ...]:
        if self.miner is not None:
            rows = self.miner(rows)
        if self.reduction == "anchors":
            return (self.row_values(rows),)
        return self.row_values(rows), (rows.positive | rows.negative).any(dim=1)
