"""SoftTriple: a softmax over classes with several centers each."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.class_centers import ClassCenters
from vicinal.similarity.embeddings import at_least_float32, normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_finite, check_nonnegative, check_positive, check_positive_integer

MIN_SQUARED_DISTANCE = 1e-5
"""As in the authors' code; it bounds the gradient of the distance between two equal centers."""


class SoftTripleLoss(CenterSoftmaxLoss):
    """SoftTriple loss: normalized softmax with a margin over classes with several centers, the mean over all anchors of

        -log( exp(scale (S_iy - margin)) / (exp(scale (S_iy - margin)) + sum_{j != y} exp(scale S_ij)) )

    where the similarity to a class is a soft maximum over its centers, `S_ij = sum_k p_k cos(x_i, c_jk)` with
    `p = softmax(cos(x_i, c_jk) / gamma)`. The regularisation term, regularizer x half the mean distance between the
    centers of a class, merges centers that are not needed.

    Reference: Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019, Eq. (9), (10)
    and (13), with the values of its experiments.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        centers_per_class: the paper's K.
        scale: the paper's lambda, positive.
        gamma: temperature of the weights of the centers of a class, positive.
        margin: the paper's delta.
        regularizer: the paper's tau, weight of the distance between the centers of a class; 0: none.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import SoftTripleLoss
        >>> loss = SoftTripleLoss(num_classes=2, dim=2, centers_per_class=2, regularizer=0)
        >>> centers = torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[-1.0, 0.0], [0.0, -1.0]]])
        >>> loss.set_centers(torch.tensor([0, 1]), centers)
        >>> loss(torch.tensor([[0.0, -1.0]]), torch.tensor([0])).detach()
        tensor(20.2045)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        centers_per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        regularizer: float = 0.2,
    ) -> None:
        check_positive_integer(self, centers_per_class=centers_per_class)
        super().__init__(num_classes, dim, scale, centers_per_class=centers_per_class)
        check_positive(self, gamma=gamma)
        check_finite(self, margin=margin)
        check_nonnegative(self, regularizer=regularizer)
        self.gamma, self.margin, self.regularizer = gamma, margin, regularizer

    def positive_logit(self, own: Tensor) -> Tensor:
        weights = (own / self.gamma).softmax(dim=1)
        return self.scale * ((weights * own).sum(dim=1) - self.margin)

    def mean_value(self, source: PairSource) -> Tensor:
        value = super().mean_value(source)
        return value + self.regularizer * self._half_mean_distance() if self.regularizer else value

    def _class_centers(self, centers: Tensor) -> ClassCenters:
        return ClassCenters(centers, self.scale, self.centers_per_class, self.gamma)

    def _half_mean_distance(self) -> Tensor:
        """Half of the mean distance of two centers of a class; 0 with one center per class."""
        k, centers = self.centers_per_class, at_least_float32(self._created())
        if k == 1:
            return centers.new_zeros(())
        units = normalize(centers).view(-1, k, centers.shape[1])
        cosines = torch.bmm(units, units.mT)
        first, second = torch.triu_indices(k, k, 1, device=centers.device)
        distances = (2 - 2 * cosines[:, first, second]).clamp_min(MIN_SQUARED_DISTANCE).sqrt()
        return distances.mean() / 2
