"""Pair-based losses, computed tile by tile.

:class:`PairLoss` has a miner. :class:`RowLoss` is a sum or mean over anchors of a function of one row of similarities,
so a new loss is one short method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vicinal.losses.base import Loss, zero_loss
from vicinal.mining import Miner
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import TilePass, check_tile_rows, values_of_passes, values_of_rows
from vicinal.utils import distributed
from vicinal.utils.arguments import check_choice, shown
from vicinal.utils.errors import InputError

Reduction = Literal["sum", "anchors", "contributing", "pairs", "violating"]
"""The count by which a loss is divided. Each loss has some of these; its docstring says which one is the paper's."""


class PairLoss(Loss):
    """A loss of the pairs that a miner selects, computed tile by tile.

    Args:
        miner: selects the pairs; None keeps all.
        tile_rows: number of anchors in a tile; memory grows with `tile_rows` x references. Default: chosen from the
            sizes. Value and gradient do not depend on it.
    """

    uses_only_similarities = True
    calls: Tensor

    def __init__(self, miner: Miner | None = None, tile_rows: int | None = None) -> None:
        super().__init__()
        check_tile_rows(tile_rows)
        if miner is not None and not isinstance(miner, Miner):
            raise InputError(f"{type(self).__name__}: miner must be a Miner such as HardestMiner(), not {shown(miner)}")
        self.miner = miner
        self.tile_rows = tile_rows
        self.is_random = miner is not None and miner.is_random
        if self.is_random:
            # Part of the state, so that a resumed training draws the same numbers as an uninterrupted one.
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def count_call(self, source: PairSource) -> PairSource:
        """Count a call of a loss with a random miner, and return the source with the number of calls."""
        if not self.is_random:
            return source
        self.calls += 1
        return replace(source, num_calls=self.calls.clone())


class RowLoss(PairLoss):
    """A sum or mean over anchors of a function of one row of similarities.

    A new loss is one method, :meth:`row_values`. A loss that also reads the weights of the pairs, in its counts too,
    sets `supports_weights`; `examples/metrix.py` mixes the examples of such losses. Its reductions are:

    - "sum": the sum over anchors.
    - "anchors": the mean over all anchors; those without pairs contribute 0.
    - "contributing": the mean over the anchors that have the pairs they need to contribute.

    Args:
        miner: selects the pairs; None keeps all.
        reduction: see above.
        tile_rows: number of anchors in a tile; memory grows with `tile_rows` x references. Default: chosen from the
            sizes. Value and gradient do not depend on it.
    """

    reductions: ClassVar[tuple[str, ...]] = ("sum", "anchors", "contributing")
    supports_weights: ClassVar[bool] = False

    def __init__(
        self, miner: Miner | None = None, reduction: Reduction = "anchors", tile_rows: int | None = None
    ) -> None:
        super().__init__(miner, tile_rows)
        check_choice(self, self.reductions, reduction=reduction)
        self.reduction = reduction

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """Compute one value per anchor, [rows]; 0 with a zero gradient for an anchor without pairs."""

    def contributes(self, rows: Rows) -> Tensor:
        """Whether an anchor has the pairs that it needs to contribute, bool [rows]."""
        return rows.has_positives | rows.has_negatives

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        """Compute the terms whose sums over anchors `reduce` gets: first values, then counts to divide by, if any."""
        values = self.row_values(rows)
        return (values, self.contributes(rows)) if self.reduction == "contributing" else (values,)

    def reduce(self, sums: Sequence[Tensor], source: PairSource) -> Tensor:
        """Compute the loss from the sums over anchors of :meth:`row_terms`."""
        if self.reduction == "sum":
            # The mean over processes must be the sum over the anchors of all of them.
            return sums[0] * (distributed.world_size() if source.is_distributed else 1)
        if self.reduction == "anchors":
            return sums[0] / source.mean_num_anchors
        return mean_over(sums[0], sums[1], source)

    def tile_pass(self, source: PairSource) -> TilePass | None:
        # A random miner needs a source with its own number of calls.
        return None if self.is_random or type(self).value is not RowLoss.value else self._tile_pass(source)

    def _tile_pass(self, source: PairSource) -> TilePass:
        finish, parameters = partial(self.reduce, source=source), list(self.parameters())
        return TilePass(finish, self.row_terms, parameters, self.miner, tile_rows=self.tile_rows)

    def value(self, source: PairSource) -> Tensor:
        source = self.count_call(source)
        passes = [self._tile_pass(source)]
        return zero_loss(source) if source.is_empty else values_of_passes(source, passes)[0]

    def _anchor_values(self, source: PairSource) -> Tensor:
        return values_of_rows(source, self.row_values, self.tile_rows, self.miner)


def mean_over(total: Tensor, count: Tensor, source: PairSource) -> Tensor:
    """Divide a sum over the anchors of a source by a count, over the anchors of all processes; by 1 if it is 0.

    A sum over no pairs is 0, but the margin loss also adds a term that does not depend on pairs.
    """
    num_processes = distributed.world_size() if source.is_distributed else 1
    count = count.to(total.dtype)
    # The mean over processes of `sum / mean count` is the sum over all anchors divided by the count over all.
    count = distributed.all_reduce_mean(count) if source.is_distributed else count
    return total / torch.where(count > 0, count, 1 / num_processes)
