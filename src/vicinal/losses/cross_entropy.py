"""Cross-entropy of a linear classifier, and center loss: losses of embeddings that are not normalized."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.class_centers import ClassCenters
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_nonnegative

MAX_ENTRY = 1e12
"""Larger entries of an embedding count as this much, so that neither their squares nor sums of squares overflow."""


class CrossEntropyLoss(CenterSoftmaxLoss):
    """Cross-entropy of a linear classifier: the mean over all anchors i with class y of

        -log( exp(w_y x_i + b_y) / sum_j exp(w_j x_i + b_j) )

    with a weight w_j and a bias b_j for each class. The loss does not normalize embeddings, nor does the model of a
    recipe when it is trained with this loss (`Embedder.normalize_in_training`). Entries of embeddings are clamped to
    [-1e12, 1e12], and clamped ones get no gradient, so that value and gradient are finite.

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (6).

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].

    Attributes:
        centers: the weights, float [num_classes, dim].
        bias: float [num_classes].

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = CrossEntropyLoss(num_classes=2, dim=2)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).detach()
        tensor(0.3133)
    """

    uses_norms: ClassVar[bool] = True
    bias: nn.Parameter | None

    def __init__(self, num_classes: int | None = None, dim: int | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__(num_classes, dim, 1.0, label_smoothing)

    def create_centers(self, num_classes: int, dim: int) -> None:
        super().create_centers(num_classes, dim)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def _check_source(self, source: PairSource) -> PairSource:
        unnormalized = super()._check_source(source).without_normalization()
        vectors = unnormalized.anchors.clamp(-MAX_ENTRY, MAX_ENTRY)
        return replace(unnormalized, anchors=vectors, references=vectors)

    def _class_centers(self, centers: Tensor) -> ClassCenters:
        assert self.bias is not None
        return ClassCenters(centers, self.scale, bias=self.bias, needs_mean=self.label_smoothing > 0)


class CenterLoss(CrossEntropyLoss):
    """Center loss: cross-entropy of a linear classifier plus the squared distance of embeddings to class centers,

        cross-entropy + center_weight x mean_i |x_i - c_y|^2

    with the class y of anchor i. Embeddings are not normalized; see :class:`CrossEntropyLoss`.

    Reference: Wen et al., "A Discriminative Feature Learning Approach for Deep Face Recognition", ECCV 2016, Eq. (5),
    whose lambda = 0.003 is for half the squares, as written in Cai et al., "Center Contrastive Loss for Metric
    Learning", 2023, Eq. (7). There centers move by the mean difference to their embeddings, here by gradient descent.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        center_weight: weight of the squared distance, not negative.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].

    Attributes:
        centers: the classifier's weights, float [num_classes, dim].
        bias: its biases, float [num_classes].
        means: the class centers, float [num_classes, dim].

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = CenterLoss(num_classes=2, dim=2, center_weight=0.5)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).detach()
        tensor(12.8133)
    """

    means: nn.Parameter | None

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        center_weight: float = 0.0015,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(num_classes, dim, label_smoothing)
        check_nonnegative(self, center_weight=center_weight)
        self.center_weight = center_weight

    def create_centers(self, num_classes: int, dim: int) -> None:
        super().create_centers(num_classes, dim)
        self.means = nn.Parameter(torch.zeros(num_classes, dim))

    def mean_value(self, source: PairSource) -> Tensor:
        return super().mean_value(source) + self._center_terms(source).mean()

    def _anchor_values(self, source: PairSource) -> Tensor:
        return super()._anchor_values(source) + self._center_terms(self._check_source(source)).detach()

    def _center_terms(self, source: PairSource) -> Tensor:
        assert self.means is not None
        own = self.means.to(source.anchors.dtype)[self._labels(source).long()]
        return self.center_weight * (source.anchors - own).square().sum(dim=1)
