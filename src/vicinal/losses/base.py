"""The interface of losses: functions of embeddings and labels that can be added and scaled."""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from vicinal.similarity.embeddings import Relation
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.tiles import TilePass, values_of_passes
from vicinal.utils.arguments import check_finite, check_list, is_number, shown
from vicinal.utils.devices import ieee_products
from vicinal.utils.errors import InputError
from vicinal.utils.memory import keep_large_blocks


class Loss(nn.Module, ABC):
    """A function of embeddings and labels.

    Losses can be combined: `0.8 * A() + 0.2 * B()` is a loss too. A new loss overrides :meth:`value`, or :meth:`parts`
    if it has several terms.

    Attributes:
        uses_only_similarities: whether the loss is a function of the similarities alone.
        uses_norms: whether the loss depends on the norms of the embeddings; other losses L2-normalize them.
        uses_features: whether the loss needs the features that the embeddings were computed from.
        uses_prefixes: whether the loss cuts the embeddings, and normalizes the prefixes.
        supports_references: whether the loss can compare embeddings with references other than their batch.
    """

    uses_only_similarities: ClassVar[bool] = False
    uses_norms: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False
    uses_prefixes: ClassVar[bool] = False
    supports_references: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        keep_large_blocks()

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
            references: float [c, d], the vectors to compare with, such as a memory or the embeddings of all
                processes. Default: the batch itself.
            reference_labels: int [c].
            offset: embedding i is reference `offset + i`, which is not a pair. None: no embedding is among the
                references.
            relation: function of labels [rows, ...] and reference labels [columns, ...], of any type and shape, that
                returns which pairs are positive, bool [rows, columns]; all others are negative. For example for images
                with several labels each.
            positive: bool [n, c], the positive pairs, in place of labels.
            negative: bool [n, c], the negative pairs. Default: all pairs that are not positive.
            features: float [n, f], the inputs that the embeddings were computed from, for losses with `uses_features`.

        Returns:
            A scalar, the sum of :meth:`parts`.

        Raises:
            InputError: Shapes, types or the offset do not match.

        Example:
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
        zero = zero_loss(source).detach()
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            return {type(self).__name__: self.value(source) + zero}

    def tile_pass(self, source: PairSource) -> TilePass | None:
        """The pass over the similarities of a source, not empty, that computes `value`; None: there is no such pass."""
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
        """The arguments of the constructor that are attributes too, for `print`."""
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
    """A weighted sum of losses; the result of `+` and `*`.

    Args:
        losses: the terms.
        weights: one number per term.

    Raises:
        InputError: no loss is given, or the numbers of losses and weights differ.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
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
        terms = [pair for loss, weight in zip(losses, weights, strict=True) for pair in _flatten(loss, float(weight))]
        self.losses = nn.ModuleList(loss for loss, _ in terms)
        self.weights = [weight for _, weight in terms]

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        values = self._shared_values(source)
        for i, (loss, weight) in enumerate(zip(self.losses, self.weights, strict=True)):
            terms = {type(loss).__name__: values[i]} if i in values else cast(Loss, loss).parts(source)
            for name, value in terms.items():
                parts[unused_name(name, parts)] = weight * value
        return parts

    def _shared_values(self, source: PairSource) -> dict[int, Tensor]:
        """The values of the losses that share the similarities with another one, by their index in `losses`."""
        if torch.compiler.is_compiling() or source.is_empty:  # the compiler merges equal products by itself
            return {}
        losses = {i: cast(Loss, loss) for i, loss in enumerate(self.losses)}
        passes = {i: loss.tile_pass(source) for i, loss in losses.items() if type(loss).parts is Loss.parts}
        shared = {i: tile_pass for i, tile_pass in passes.items() if tile_pass is not None}
        if len(shared) < 2:
            return {}
        for i in shared:
            losses[i]._check_device(source.anchors.device)
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            values = values_of_passes(source, list(shared.values()))
            zero = zero_loss(source).detach()
            return {i: value + zero for i, value in zip(shared, values, strict=True)}

    def _anchor_values(self, source: PairSource) -> Tensor:
        terms = zip(self.losses, self.weights, strict=True)
        return torch.stack([weight * cast(Loss, loss)._anchor_values(source) for loss, weight in terms]).sum(dim=0)


def loss_terms(loss: Loss) -> list[Loss]:
    """The losses of a weighted sum, or the loss itself."""
    return [cast(Loss, term) for term in loss.losses] if isinstance(loss, WeightedSum) else [loss]


def _flatten(loss: Loss, weight: float) -> list[tuple[Loss, float]]:
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
