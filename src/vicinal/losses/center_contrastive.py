"""Center contrastive loss (CCL), and cluster contrast with centers that are moving averages."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.losses.proxy_softmax import CosFaceLoss
from vicinal.similarity.class_centers import CenterRows
from vicinal.similarity.embeddings import normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.arguments import check_fraction, check_nonnegative


class CenterContrastiveLoss(CosFaceLoss):
    """Center contrastive loss (CCL): the mean over all anchors i with class y of

        -log( exp(s (c_y x_i - m) + 2 lambda c_y x_i) / (exp(s (c_y x_i - m)) + sum_j exp(s c_j x_i)) )

    with the centers c_j of the other classes, all vectors of norm 1, s the scale, m the margin and lambda the center
    weight. It is large-margin contrastive learning against centers plus `lambda |x_i - c_y|^2` minus the constant
    2 lambda, so its value may be negative. Label smoothing applies to the softmax, not to the center term.

    With `center_weight=0` it is :class:`CosFaceLoss`, and with `margin=0` too it is :class:`NormSoftmaxLoss`.

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (5), with its scale and label
    smoothing; lambda 0.5 to 2 and margin 0 to 0.4, with label noise lambda 2 and no margin.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        margin: subtracted from the similarity to the own class.
        center_weight: the paper's lambda, not negative.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].
        stop_gradient: whether the centers learn only from the center term (the paper's Table 1).
        sample_rate: fraction of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
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
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, margin, label_smoothing, sample_rate, seed, sharded)
        check_nonnegative(self, center_weight=center_weight)
        self.center_weight = center_weight
        self.stop_gradient = stop_gradient

    def row_values(self, rows: CenterRows) -> Tensor:
        return super().row_values(rows) - 2 * self.center_weight * rows.own[:, 0]

    def mean_value(self, source: PairSource) -> Tensor:
        if not self.stop_gradient:
            return super().mean_value(source)
        value = self._mean_with_centers(self._require_centers().detach(), source)
        center_term = -2 * self.center_weight * self._own_similarity(source).mean()
        return value + (center_term - center_term.detach())  # adds only its gradient: its value is in `value`

    def _own_similarity(self, source: PairSource) -> Tensor:
        """Similarity of each detached anchor to the center of its class; 0 where another process holds it, [n]."""
        index, is_local = self._locate(self._labels(source))
        own = normalize(self._require_centers().to(source.anchors.dtype)[index])
        return torch.where(is_local, torch.linalg.vecdot(source.anchors.detach(), own), 0.0)


class ClusterContrastLoss(CenterSoftmaxLoss):
    """Cluster contrast: normalized softmax over centers that are moving averages of the embeddings of their classes.

    After each call in training the center of every class of the batch is updated,

        c_y <- normalize(momentum c_y + (1 - momentum) x_y),

    where x_y is the mean of the class's normalized embeddings in the batch, over all processes. A batch is compared
    with the centers before they are updated.

    Reference: Dai et al., "Cluster Contrast for Unsupervised Person Re-Identification", ACCV 2022, with its momentum
    and temperature 0.05 as 1 / scale, as written in Cai et al., "Center Contrastive Loss for Metric Learning", 2023,
    Eq. (14). There each embedding in turn updates its center; the mean does not depend on their order.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        momentum: weight of the previous center, in [0, 1].
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
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
        check_fraction(self, momentum=momentum)
        self.momentum = momentum

    def mean_value(self, source: PairSource) -> Tensor:
        value = super().mean_value(source)
        if self.training:
            if distributed.world_size() > 1 and not source.is_distributed:
                self._check_same_everywhere(source)  # otherwise the processes' centers would diverge
            self._update_centers(source.references_as_batch())
        return value

    @torch.no_grad()
    def _update_centers(self, batch: PairSource) -> None:
        centers, labels = self._require_centers(), self._labels(batch).long()
        sums = torch.zeros_like(centers).index_add_(0, labels, batch.anchors.to(centers))
        counts = torch.zeros_like(centers[:, 0]).index_add_(0, labels, torch.ones_like(labels, dtype=centers.dtype))
        moved = self.momentum * normalize(centers) + (1 - self.momentum) * sums / counts.clamp_min(1)[:, None]
        centers.copy_(torch.where(counts[:, None] > 0, normalize(moved), centers))
