"""Losses that are minus the logarithm of a softmax over class centers: what they share, and NormSoftmax."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_positive, check_seed
from vicinal.center_tiles import CenterRows, Centers, sum_over_anchors, values_of_anchors
from vicinal.errors import InputError
from vicinal.losses.centers import CenterBasedLoss
from vicinal.losses.row_functions import softplus
from vicinal.seeds import mixed_seed
from vicinal.similarity import Source


class CenterSoftmaxLoss(CenterBasedLoss):
    """The mean over all anchors of minus the logarithm of a softmax over classes.

    A new loss is one method, :meth:`positive_logit`: what stands in the exponent of an anchor's own class. In those of
    the other classes stands scale x cosine.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        scale: factor of the similarities, positive.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.
        sampled_share: share of all classes that a batch is compared with, though no fewer than it has samples: its
            own and others drawn at random; the softmax is over these. Partial FC (An et al., "Partial FC: Training 10
            Million Identities on a Single Machine", 2021), there 0.1. 1: all classes.
        seed: of the draws.
        sharded: each of several processes holds the centers of a part of the classes; value and gradient stay those
            of all classes.
    """

    calls: Tensor

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 20.0,
        label_smoothing: float = 0.0,
        sampled_share: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
        centers_per_class: int = 1,
    ) -> None:
        super().__init__(num_classes, dim, centers_per_class, sharded)
        check_positive(self, scale=scale)
        check_seed(self, seed)
        for name, value, lowest in (("label_smoothing", label_smoothing, 0.0), ("sampled_share", sampled_share, 1e-9)):
            if not lowest <= value <= 1:
                raise InputError(f"{type(self).__name__}: {name} = {value} must be from 0 to 1")
        self.scale, self.label_smoothing = scale, label_smoothing
        self.sampled_share, self.seed = sampled_share, seed
        if sampled_share < 1:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def positive_logit(self, own: Tensor) -> Tensor:
        """The exponent of an anchor's own class, [rows], from its similarities [rows, centers_per_class]."""
        return self.scale * own[:, 0]

    def row_values(self, rows: CenterRows) -> Tensor:
        """One value an anchor, [rows]."""
        positive = self.positive_logit(rows.own)
        value = softplus(rows.others - positive)
        if self.label_smoothing == 0 or rows.classes == 1:
            return value
        # Of the target probability a share moves from one's own exponent to the mean of the others.
        others = (rows.classes * rows.mean - self.scale * rows.own[:, 0]) / (rows.classes - 1)
        return value + self.label_smoothing * (positive - others)

    def value(self, source: Source) -> Tensor:
        return self._mean_against(self._created(), source)

    def _mean_against(self, centers: Tensor, source: Source) -> Tensor:
        """The mean over all anchors of their values, by centers that learn or not."""
        compared = self._compared(centers, source)
        if self.sampled_share < 1 and self.training:
            self.calls += 1
        return sum_over_anchors(source.anchors, self._labels(source), compared, self.row_values) / len(source)

    def _values(self, source: Source) -> Tensor:
        compared = self._anchors(source)  # those of all processes, where centers are divided among them
        if not len(compared):
            return compared.anchors.new_zeros(0)
        centers = self._compared(self._created().detach(), compared)
        values = values_of_anchors(compared.anchors, self._labels(compared), centers, self.row_values)
        return values if len(compared) == len(source) else values[source.offset :][: len(source)]

    @staticmethod
    def _labels(source: Source) -> Tensor:
        assert source.labels is not None
        return source.labels

    def _compared(self, centers: Tensor, source: Source) -> Centers:
        """The centers that a batch is compared with."""
        ids = self._sampled(source) if self.sampled_share < 1 else None
        if ids is not None:
            centers = centers[_columns(ids, self.centers_per_class)]
        of_all: list[int] = []
        if self.is_divided:
            first = self._first_class()
            here = len(centers) // self.centers_per_class
            ids = torch.arange(first, first + here, device=centers.device) if ids is None else ids + first
            of_all = [self._number(classes, len(source)) for classes in self.classes_of_all()]
        smoothed = self.label_smoothing > 0
        return Centers(
            centers, self.scale, self.centers_per_class, wants_mean=smoothed, ids=ids, classes_of_all=tuple(of_all)
        )

    def _number(self, classes: int, anchors: int) -> int:
        """How many of the classes of a process are compared with: their share, and all that a batch may be of."""
        if self.sampled_share == 1:
            return classes
        return min(classes, max(round(self.sampled_share * classes), anchors, 2))

    def _sampled(self, source: Source) -> Tensor:
        """The classes of this process that are compared with, ascending: those of the batch, and random others."""
        here = len(self._created()) // self.centers_per_class
        generator = torch.Generator().manual_seed(
            mixed_seed(self.seed, int(self.calls), distributed.rank() if self.is_divided else 0)
        )
        places, held = self._places(self._labels(source))
        order = torch.rand(here, generator=generator).to(places.device)
        order.index_put_((places,), held.to(order), accumulate=True)  # 1 and more: first
        return order.topk(self._number(here, len(places))).indices.sort().values


class NormSoftmaxLoss(CenterSoftmaxLoss):
    """Normalised softmax: the mean over all anchors i with class y of

        -log( exp(scale cos(x_i, c_y)) / sum_j exp(scale cos(x_i, c_j)) )

    with the centers c_j of all classes.

    Reference: Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019, Eq. (4), with
    its temperature 0.05 as 1 / scale; Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (8).

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        scale: factor of the similarities, positive.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.
        sampled_share: share of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of their draws.
        sharded: divide the centers among processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import NormSoftmaxLoss
        >>> loss = NormSoftmaxLoss(num_classes=3, dim=2, scale=4)
        >>> loss.set_centers(torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        >>> loss(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1])).detach()
        tensor(0.1961)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 20.0,
        label_smoothing: float = 0.0,
        sampled_share: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, label_smoothing, sampled_share, seed, sharded)


def _columns(ids: Tensor, per_class: int) -> Tensor:
    """Where the centers of some classes are among all."""
    return (ids[:, None] * per_class + torch.arange(per_class, device=ids.device)).flatten()
