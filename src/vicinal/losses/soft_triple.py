"""SoftTriple: several centers a class."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.arguments import check_at_least_one, check_finite, check_not_negative, check_positive
from vicinal.center_tiles import Centers
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity import Source, at_least_float32, normalize

SMALLEST_SQUARED_DISTANCE = 1e-5
"""As in the authors' code; it bounds the slope of the distance between two centers that are the same."""


class SoftTripleLoss(CenterSoftmaxLoss):
    """SoftTriple loss: normalised softmax with a margin over classes of several centers, the mean over all anchors of

        -log( exp(scale (S_iy - margin)) / (exp(scale (S_iy - margin)) + sum_{j != y} exp(scale S_ij)) )

    where the similarity to a class is a soft maximum over its centers, `S_ij = sum_k p_k cos(x_i, c_jk)` with
    `p = softmax(cos(x_i, c_jk) / gamma)`. Added is regularizer x the mean distance between centers of a class, halved,
    so that centers that are not needed become one.

    Reference: Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019, Eq. (9), (10)
    and (13), with the values of its experiments.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        centers_per_class: K.
        scale: the paper's lambda, positive.
        gamma: temperature of the weights of a class's centers, positive.
        margin: the paper's delta.
        regularizer: the paper's tau, weight of the distance between centers of a class; 0: none.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

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
        check_at_least_one(self, centers_per_class=centers_per_class)
        super().__init__(num_classes, dim, scale, centers_per_class=centers_per_class)
        check_positive(self, gamma=gamma)
        check_finite(self, margin=margin)
        check_not_negative(self, regularizer=regularizer)
        self.gamma, self.margin, self.regularizer = gamma, margin, regularizer

    def positive_logit(self, own: Tensor) -> Tensor:
        weights = (own / self.gamma).softmax(dim=1)
        return self.scale * ((weights * own).sum(dim=1) - self.margin)

    def value(self, source: Source) -> Tensor:
        value = super().value(source)
        return value + self.regularizer * self._half_mean_distance() if self.regularizer else value

    def _compared(self, centers: Tensor, source: Source) -> Centers:
        return Centers(centers, self.scale, self.centers_per_class, self.gamma)

    def _half_mean_distance(self) -> Tensor:
        """Half of the mean distance of two centers of a class; 0 with one center a class."""
        k, centers = self.centers_per_class, at_least_float32(self._created())
        if k == 1:
            return centers.new_zeros(())
        units = normalize(centers).view(-1, k, centers.shape[1])
        cosines = torch.bmm(units, units.mT)
        first, second = torch.triu_indices(k, k, 1, device=centers.device)
        distances = (2 - 2 * cosines[:, first, second]).clamp_min(SMALLEST_SQUARED_DISTANCE).sqrt()
        return distances.mean() / 2
