"""Center contrastive learning: the joint loss of CCL, and cluster contrast with centers that follow their classes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_not_negative
from vicinal.center_tiles import CenterRows
from vicinal.errors import InputError
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.losses.margin_softmax import CosFaceLoss
from vicinal.similarity import Source, normalize


class CenterContrastiveLoss(CosFaceLoss):
    """Center contrastive loss (CCL): the mean over all anchors i with class y of

        -log( exp(s (c_y x_i - m) + 2 lambda c_y x_i) / (exp(s (c_y x_i - m)) + sum_j exp(s c_j x_i)) )

    with the centers c_j of the other classes, all vectors of length 1, s the scale, m the margin and lambda the center
    weight. It is large-margin contrastive learning against centers plus lambda |x_i - c_y|^2, less the constant
    2 lambda: so its value may be negative. Label smoothing concerns the softmax and not the center term.

    With `center_weight=0` it is :class:`CosFaceLoss`, without margin too :class:`NormSoftmaxLoss`.

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (5), with its scale and label
    smoothing; lambda 0.5 to 2 and margin 0 to 0.4, with wrong labels lambda 2 without margin.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        scale: factor of the similarities, positive.
        margin: taken from the similarity to the own class.
        center_weight: lambda, not negative.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.
        stop_gradient: the centers learn from the center term alone, as in cluster contrast (the paper's Table 1).
        sampled_share: share of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of their draws.
        sharded: divide the centers among processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import CenterContrastiveLoss
        >>> loss = CenterContrastiveLoss(num_classes=2, dim=2, margin=0.1)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(-1.2561)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 16.0,
        margin: float = 0.0,
        center_weight: float = 1.0,
        label_smoothing: float = 0.1,
        stop_gradient: bool = False,
        sampled_share: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, margin, label_smoothing, sampled_share, seed, sharded)
        check_not_negative(self, center_weight=center_weight)
        self.center_weight = center_weight
        self.stop_gradient = stop_gradient

    def row_values(self, rows: CenterRows) -> Tensor:
        return super().row_values(rows) - 2 * self.center_weight * rows.own[:, 0]

    def value(self, source: Source) -> Tensor:
        if not self.stop_gradient:
            return super().value(source)
        value = self._mean_against(self._created().detach(), source)
        center_term = -2 * self.center_weight * self._own_similarity(source).mean()
        return value + (center_term - center_term.detach())  # its value is in the first already, its gradient is not

    def _own_similarity(self, source: Source) -> Tensor:
        """Of each anchor, taken as it is, to the center of its class; 0 where another process holds that, [n]."""
        places, held = self._places(self._labels(source))
        own = normalize(self._created().to(source.anchors.dtype)[places])
        return torch.where(held, torch.linalg.vecdot(source.anchors.detach(), own), 0.0)


class ClusterContrastLoss(CenterSoftmaxLoss):
    """Cluster contrast: normalised softmax against centers that are no parameters but follow their classes.

    After each call in training the center of every class of the batch moves,

        c_y <- normalise(momentum c_y + (1 - momentum) x_y),

    x_y the mean of the class's unit embeddings in the batch, over all processes. The center does not see its own
    batch's embeddings before they are compared with it.

    Reference: Dai et al., "Cluster Contrast for Unsupervised Person Re-Identification", ACCV 2022, with its momentum
    and temperature 0.05 as 1 / scale, as written in Cai et al., "Center Contrastive Loss for Metric Learning", 2023,
    Eq. (14). There one embedding after the other moves its center; the mean does not depend on their order.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        scale: factor of the similarities, positive.
        momentum: share of a center that stays, from 0 to 1.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import ClusterContrastLoss
        >>> loss = ClusterContrastLoss(num_classes=2, dim=2, momentum=0.5)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(20.)
        >>> loss.centers
        Parameter containing:
        tensor([[0.7071, 0.7071],
                [0.0000, 1.0000]])
    """

    learns_centers: ClassVar[bool] = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 20.0,
        momentum: float = 0.1,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(num_classes, dim, scale, label_smoothing)
        if not 0 <= momentum <= 1:
            raise InputError(f"ClusterContrastLoss: momentum = {momentum} must be from 0 to 1")
        self.momentum = momentum

    def value(self, source: Source) -> Tensor:
        value = super().value(source)
        if self.training:
            if distributed.world_size() > 1 and not source.shared:
                self._check_same_everywhere(source)  # or the processes' centers would part
            self._follow(source.among_references())
        return value

    @torch.no_grad()
    def _follow(self, batch: Source) -> None:
        centers, labels = self._created(), self._labels(batch).long()
        sums = torch.zeros_like(centers).index_add_(0, labels, batch.anchors.to(centers))
        counts = torch.zeros_like(centers[:, 0]).index_add_(0, labels, torch.ones_like(labels, dtype=centers.dtype))
        moved = self.momentum * normalize(centers) + (1 - self.momentum) * sums / counts.clamp_min(1)[:, None]
        centers.copy_(torch.where(counts[:, None] > 0, normalize(moved), centers))
