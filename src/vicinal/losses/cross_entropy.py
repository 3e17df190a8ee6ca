"""Softmax cross-entropy with a linear classifier, and center loss beside it: losses of embeddings of any length."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from vicinal.arguments import check_not_negative
from vicinal.center_tiles import Centers
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity import Source


class CrossEntropyLoss(CenterSoftmaxLoss):
    """Cross-entropy of a linear classifier: the mean over all anchors i with class y of

        -log( exp(w_y x_i + b_y) / sum_j exp(w_j x_i + b_j) )

    with a weight w_j and a bias b_j for each class, and embeddings as they are: this loss does not normalise them, and
    a recipe's model does not in training with it (:attr:`vicinal.Embedder.keeps_length`).

    Reference: Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (6).

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.

    Attributes:
        centers: the weights, float [num_classes, dim].
        bias: float [num_classes].

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import CrossEntropyLoss
        >>> loss = CrossEntropyLoss(num_classes=2, dim=2)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).detach()
        tensor(0.3133)
    """

    of_lengths: ClassVar[bool] = True
    bias: nn.Parameter | None

    def __init__(self, num_classes: int | None = None, dim: int | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__(num_classes, dim, 1.0, label_smoothing)

    def create(self, num_classes: int, dim: int) -> None:
        super().create(num_classes, dim)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def _anchors(self, source: Source) -> Source:
        source = super()._anchors(source)
        return source.as_they_are()

    def _compared(self, centers: Tensor, source: Source) -> Centers:
        assert self.bias is not None
        return Centers(centers, self.scale, bias=self.bias, wants_mean=self.label_smoothing > 0)


class CenterLoss(CrossEntropyLoss):
    """Center loss: cross-entropy of a linear classifier, and beside it centers that embeddings are drawn to,

        cross-entropy + center_weight x mean_i |x_i - c_y|^2

    with the class y of anchor i and embeddings as they are, not normalised; see :class:`CrossEntropyLoss`.

    Reference: Wen et al., "A Discriminative Feature Learning Approach for Deep Face Recognition", ECCV 2016, Eq. (5),
    whose lambda = 0.003 is of half the squares, as written in Cai et al., "Center Contrastive Loss for Metric
    Learning", 2023, Eq. (7). There centers move by the mean difference to their embeddings, here by the gradient.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        center_weight: not negative.
        label_smoothing: share of the target probability that goes to the other classes in equal parts, from 0 to 1.

    Attributes:
        centers: the classifier's weights, float [num_classes, dim].
        bias: its biases, float [num_classes].
        means: the centers that embeddings are drawn to, float [num_classes, dim].

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import CenterLoss
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
        check_not_negative(self, center_weight=center_weight)
        self.center_weight = center_weight

    def create(self, num_classes: int, dim: int) -> None:
        super().create(num_classes, dim)
        self.means = nn.Parameter(torch.zeros(num_classes, dim))

    def value(self, source: Source) -> Tensor:
        return super().value(source) + self._center_terms(source).mean()

    def _values(self, source: Source) -> Tensor:
        return super()._values(source) + self._center_terms(self._anchors(source)).detach()

    def _center_terms(self, source: Source) -> Tensor:
        assert self.means is not None
        own = self.means.to(source.anchors.dtype)[self._labels(source).long()]
        return self.center_weight * (source.anchors - own).square().sum(dim=1)
