"""Base classes of losses.

:class:`Loss` is the interface: a function of embeddings and labels that can be added and scaled. :class:`PairLoss` has
a miner and is computed in tiles. :class:`RowLoss` is a sum or mean over anchors of a function of one row of
similarities, so a new loss is one short method.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from vicinal.mining import Miner
from vicinal.similarity.checks import Relation
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import Look, RowSums, check_tile_rows, sums_over_rows, values_of_rows
from vicinal.utils import distributed
from vicinal.utils.arguments import check_finite, check_list, is_number, shown
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.ieee_products import ieee_products

Reduction = Literal["sum", "anchors", "contributing", "pairs", "violating"]
"""What a loss is averaged over. Each loss has some of these; its docstring says which one is the paper's."""


class Walk(NamedTuple):
    """What a loss does while all similarities of a source are computed, tile by tile; losses of a sum share that.

    Attributes:
        finish: computes the value from the sums over anchors, in the order of `sums`.
        sums: what is summed over anchors.
        look: reads the similarities of a tile.
        tile_rows: number of anchors in a tile; None: any.
    """

    finish: Callable[[tuple[Tensor, ...]], Tensor]
    sums: RowSums | None = None
    look: Look | None = None
    tile_rows: int | None = None


class Loss(nn.Module, ABC):
    """A function of embeddings and labels.

    Losses can be combined: `0.8 * A() + 0.2 * B()` is a loss too. A new loss overrides :meth:`value`, or :meth:`parts`
    if it has several terms.

    Attributes:
        uses_only_similarities: whether the loss is a function of the similarities alone.
        uses_norms: whether the loss depends on the norms of the embeddings; other losses L2-normalize them.
        uses_features: whether the loss needs the features that the embeddings were computed from.
        uses_prefixes: whether the loss cuts the embeddings, and normalizes what is left.
        supports_references: whether the loss can compare embeddings with references other than their batch.
    """

    uses_only_similarities: ClassVar[bool] = False
    uses_norms: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False
    uses_prefixes: ClassVar[bool] = False
    supports_references: ClassVar[bool] = True

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
        features: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of a batch that is compared with itself, or with references.

        The computation is in at least float32, also under autocast.

        Args:
            embeddings: float [n, d], of any length: they are L2-normalized here.
            labels: int [n], any integers. Two embeddings of equal labels are a positive pair, others a negative pair.
            references: float [c, d], what the embeddings are compared with, such as a memory or the embeddings of all
                processes. Default: the batch itself.
            reference_labels: int [c].
            offset: embedding i is reference `offset + i`, which is not a pair. None: no embedding is among the
                references.
            relation: function of labels [rows, ...] and reference labels [columns, ...], of any type and shape, that
                returns which pairs are positive, bool [rows, columns]; all others are negative. For example for images
                with several labels each.
            positive: bool [n, c], the positive pairs, in place of labels.
            negative: bool [n, c], the negative pairs. Default: all pairs that are not positive.
            features: float [n, f], what the embeddings were computed from, for losses with `uses_features`.

        Returns:
            A scalar, the sum of :meth:`parts`.

        Raises:
            InputError: Shapes, types or the offset do not match.

        Example:
            >>> import torch
            >>> from vicinal.losses import ContrastiveLoss
            >>> embeddings = torch.eye(3)
            >>> tags = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]])  # the first two have a tag in common
            >>> ContrastiveLoss()(embeddings, tags, relation=lambda a, b: (a[:, None] * b).any(dim=-1))
            tensor(0.9000)
            >>> ContrastiveLoss()(embeddings, torch.tensor([7, 7, 9]))
            tensor(0.9000)
        """
        source = PairSource.from_batch(
            embeddings,
            labels,
            references,
            reference_labels,
            offset,
            relation=relation,
            positive=positive,
            negative=negative,
            features=features,
        )
        return torch.stack(list(self.parts(source).values())).sum()

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        """Compute the weighted terms that add up to the loss, by name, for example for logging.

        In a distributed training loop of your own, backpropagate the sum of
        `loss.parts(PairSource.from_distributed_batch(embeddings, labels))`.
        """
        self._check_device(source.anchors.device)
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            return {type(self).__name__: self.value(source) + zero_loss(source).detach()}

    def walk(self, source: PairSource) -> Walk | None:
        """What `value` does with the similarities of a source that is not empty; None: nothing to share."""
        return None

    def value(self, source: PairSource) -> Tensor:
        """Compute a loss of one term, a scalar; a zero that backpropagates if nothing can be compared."""
        raise InputError(f"{type(self).__name__} is a base class of losses; give a loss such as MultiSimilarityLoss")

    @torch.no_grad()
    def anchor_values(self, source: PairSource) -> Tensor:
        """Compute the loss of each anchor, [n], without gradient: how hard a sample is for the loss.

        Raises:
            InputError: the loss is not a sum over anchors.
        """
        self._check_device(source.anchors.device)
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            return self._anchor_values(source)

    def _check_device(self, device: torch.device) -> None:
        for name, parameter in self.named_parameters():
            if parameter.device != device:
                raise InputError(
                    f"{type(self).__name__}: {name} is on {parameter.device} and the embeddings on {device}; move the "
                    "loss, as by loss.to(embeddings.device)"
                )

    def _anchor_values(self, source: PairSource) -> Tensor:
        raise InputError(f"{type(self).__name__} has no value for each sample, and one is needed; give another loss")

    def extra_repr(self) -> str:
        """The constructor's arguments, for `print`."""
        names = [name for name in inspect.signature(type(self)).parameters if name in self.__dict__]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def __add__(self, other: Loss) -> WeightedSum:
        return WeightedSum([self, other], [1.0, 1.0]) if isinstance(other, Loss) else NotImplemented

    def __radd__(self, other: object) -> Loss:
        return self if other == 0 else NotImplemented  # `sum` starts with 0

    def __sub__(self, other: Loss) -> WeightedSum:
        return WeightedSum([self, other], [1.0, -1.0]) if isinstance(other, Loss) else NotImplemented

    def __neg__(self) -> WeightedSum:
        return self * -1.0

    def __truediv__(self, weight: float) -> WeightedSum:
        if not is_number(weight) or weight == 0:
            raise InputError(f"a loss is divided by a number other than 0, not by {shown(weight)}")
        return self * (1 / weight)

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum([self], [weight])

    __rmul__ = __mul__


class WeightedSum(Loss):
    """A weighted sum of losses; what `+` and `*` return.

    Args:
        losses: the terms.
        weights: one number per term.

    Raises:
        InputError: there is no loss, or the numbers of losses and weights differ.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
        >>> from vicinal.similarity import PairSource
        >>> loss = 0.5 * MultiSimilarityLoss() + 2 * MultiSimilarityLoss(miner=None)
        >>> list(loss.parts(PairSource.from_batch(torch.eye(4), torch.tensor([0, 0, 1, 1]))))
        ['MultiSimilarityLoss', 'MultiSimilarityLoss_2']
    """

    def __init__(self, losses: Sequence[Loss], weights: Sequence[float]) -> None:
        super().__init__()
        check_list("WeightedSum: losses", losses, "losses")
        check_list("WeightedSum: weights", weights, "numbers")
        losses, weights = list(losses), list(weights)
        for loss in losses:
            if not isinstance(loss, Loss):
                raise InputError(f"WeightedSum: {shown(loss)} is not a loss")
        for weight in weights:
            check_finite(self, weight=weight)
        if len(losses) != len(weights) or not losses:
            raise InputError(f"WeightedSum: {len(losses)} losses and {len(weights)} weights; give one weight per loss")
        terms = [pair for loss, weight in zip(losses, weights, strict=True) for pair in _flat(loss, float(weight))]
        self.losses = nn.ModuleList(loss for loss, _ in terms)
        self.weights = [weight for _, weight in terms]

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        values = self._values_of_walk(source)
        for i, (loss, weight) in enumerate(zip(self.losses, self.weights, strict=True)):
            own = {type(loss).__name__: values[i]} if i in values else cast(Loss, loss).parts(source)
            for name, value in own.items():
                parts[unused_name(name, parts)] = weight * value
        return parts

    def _values_of_walk(self, source: PairSource) -> dict[int, Tensor]:
        """The number of each loss that shares the similarities with another one, and its value."""
        if torch.compiler.is_compiling() or source.is_empty:  # the compiler merges equal products by itself
            return {}
        walks = {i: cast(Loss, loss).walk(source) for i, loss in enumerate(self.losses) if _has_one_part(loss)}
        shared = {i: walk for i, walk in walks.items() if walk is not None}
        if len(shared) < 2:
            return {}
        for i in shared:
            cast(Loss, self.losses[i])._check_device(source.anchors.device)
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            values = values_of_walks(source, list(shared.values()))
            zero = zero_loss(source).detach()
            return {i: value + zero for i, value in zip(shared, values, strict=True)}

    def _anchor_values(self, source: PairSource) -> Tensor:
        terms = zip(self.losses, self.weights, strict=True)
        return torch.stack([weight * cast(Loss, loss)._anchor_values(source) for loss, weight in terms]).sum(dim=0)


def _has_one_part(loss: nn.Module) -> bool:
    return type(loss).parts is Loss.parts  # type: ignore[attr-defined]


def values_of_walks(source: PairSource, walks: Sequence[Walk]) -> list[Tensor]:
    """The values of losses, from similarities that are computed once."""
    sums = [walk.sums for walk in walks if walk.sums is not None]
    looks = [walk.look for walk in walks if walk.look is not None]
    tile_rows = min((walk.tile_rows for walk in walks if walk.tile_rows is not None), default=None)
    totals = iter(sums_over_rows(source, sums, tile_rows, looks))
    return [walk.finish(() if walk.sums is None else next(totals)) for walk in walks]


def loss_terms(loss: Loss) -> list[Loss]:
    """The losses of a weighted sum, or the loss itself."""
    return [cast(Loss, term) for term in loss.losses] if isinstance(loss, WeightedSum) else [loss]


def _flat(loss: Loss, weight: float) -> list[tuple[Loss, float]]:
    """Turn sums of sums into one sum, so that its parts are named after the losses."""
    if not isinstance(loss, WeightedSum):
        return [(loss, weight)]
    return [(cast(Loss, term), weight * inner) for term, inner in zip(loss.losses, loss.weights, strict=True)]


def unused_name(name: str, taken: dict[str, Tensor]) -> str:
    """A name for a part of a loss: a number is added where the name is taken."""
    count = sum(other == name or other.startswith(f"{name}_") for other in taken)
    return name if count == 0 else f"{name}_{count + 1}"


def zero_loss(source: PairSource) -> Tensor:
    """0 with a zero gradient; NaN if an embedding has a NaN or an infinity.

    Comparisons with NaN, such as a miner's, are false, so without this a broken embedding would look like one without
    pairs.
    """
    zero = 0 * source.anchors.sum()
    return zero if source.references is source.anchors else zero + 0 * source.references.sum()


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
        if miner is not None and miner.is_random:
            # Part of the state, so that a resumed training draws the same numbers as an uninterrupted one.
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def count_call(self, source: PairSource) -> PairSource:
        """Count a call of a loss with a random miner, and return the source with the number of calls."""
        if self.miner is None or not self.miner.is_random:
            return source
        self.calls += 1
        return replace(source, num_calls=self.calls.clone())


class RowLoss(PairLoss):
    """A sum or mean over anchors of a function of one row of similarities.

    A new loss is one method, :meth:`row_values`. A loss that also reads the weights of the pairs, in its counts too,
    sets `supports_weights`, and :class:`~vicinal.mixing.Metrix` can then mix its examples. Its reductions are:

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
        if reduction not in self.reductions:
            allowed = " or ".join(f'"{name}"' for name in self.reductions)
            raise InputError(f"{type(self).__name__}: reduction = {one_line(repr(reduction), 80)} must be {allowed}")
        self.reduction = reduction

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """Compute one value per anchor, [rows]; 0 with a zero gradient for an anchor without pairs."""

    def contributes(self, rows: Rows) -> Tensor:
        """Whether an anchor has the pairs that it needs to contribute, bool [rows]."""
        return rows.has_positives | rows.has_negatives

    def row_terms(self, rows: Rows) -> tuple[Tensor, ...]:
        """Compute what is summed over anchors before `reduce`: first values, then counts to divide by, if any."""
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

    def walk(self, source: PairSource) -> Walk | None:
        is_alone = self.miner is not None and self.miner.is_random  # has a source with its own number of calls
        return None if is_alone or type(self).value is not RowLoss.value else self._walk(source)

    def _walk(self, source: PairSource) -> Walk:
        sums = RowSums(self.row_terms, list(self.parameters()), self.miner)
        return Walk(partial(self.reduce, source=source), sums, tile_rows=self.tile_rows)

    def value(self, source: PairSource) -> Tensor:
        if source.is_empty:
            return zero_loss(source)
        source = self.count_call(source)
        return values_of_walks(source, [self._walk(source)])[0]

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
