"""Softmax over class centers: CosFace and ArcFace with a margin, ProxyNCA(++), SoftTriple with several centers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.class_centers import CenterRows, ClassCenters
from vicinal.similarity.embeddings import at_least_float32, normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_finite, check_nonnegative, check_positive, check_positive_integer
from vicinal.utils.errors import InputError

MIN_SQUARED_SINE = 1e-14  # below it the sine is taken as 0, as its derivative would be infinite
MIN_SQUARED_DISTANCE = 1e-5  # as in the authors' code; it bounds the gradient of the distance between two equal centers


class CosFaceLoss(CenterSoftmaxLoss):
    """CosFace, or additive-margin softmax: the mean over all anchors i with class y of

        -log( e_y / (e_y + sum_j exp(scale cos(x_i, c_j))) ),   e_y = exp(scale (cos(x_i, c_y) - margin))

    with the sum over the centers c_j of the other classes.

    Reference: Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018, Eq. (4), with its
    scale and margin.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        margin: subtracted from the similarity to the own class.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].
        sample_rate: fraction of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = CosFaceLoss(num_classes=2, dim=2, scale=4, margin=0.5)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(1.4633)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 64.0,
        margin: float = 0.35,
        label_smoothing: float = 0.0,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, label_smoothing, sample_rate=sample_rate, seed=seed, sharded=sharded)
        check_finite(self, margin=margin)
        self.margin = margin

    def positive_logit(self, own: Tensor) -> Tensor:
        return self.scale * (own[:, 0] - self.margin)


class ArcFaceLoss(CosFaceLoss):
    """ArcFace: CosFace with the margin added to the angle; the logit of the own class is

        scale cos(theta + margin),  theta the angle between x_i and c_y,

    and where theta + margin > pi, so that the cosine would increase again, scale (cos theta - margin sin margin).

    Reference: Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019, Eq. (3), with
    its scale and margin; the part beyond pi is from the authors' code.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        margin: added to the angle, in radians; 0.5 is 28.6 degrees.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].
        sample_rate: fraction of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is out of range, such as a margin outside [0, pi]; see also
            :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = ArcFaceLoss(num_classes=2, dim=2, scale=4)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(1.1317)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 64.0,
        margin: float = 0.5,
        label_smoothing: float = 0.0,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, margin, label_smoothing, sample_rate, seed, sharded)
        if not 0 <= margin <= math.pi:
            raise InputError(f"ArcFaceLoss: margin = {margin} must be an angle from 0 to pi")

    def positive_logit(self, own: Tensor) -> Tensor:
        cosine = own[:, 0]
        squared = 1 - cosine.square()
        sine = torch.where(squared > MIN_SQUARED_SINE, squared.clamp_min(MIN_SQUARED_SINE).sqrt(), 0.0)
        beyond = cosine < -math.cos(self.margin)
        turned = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        return self.scale * torch.where(beyond, cosine - self.margin * math.sin(self.margin), turned)


class ProxyNCALoss(CenterSoftmaxLoss):
    """ProxyNCA: the mean over all anchors i with class y of

        -log( exp(scale cos(x_i, c_y)) / sum_{j != y} exp(scale cos(x_i, c_j)) )

    without the own class in the sum, so that the value may be negative. Squared distances of unit vectors are
    2 - 2 cos, so the paper's exponents have scale 2; its authors scale vectors to norm 3, which is scale 18.

    Reference: Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017, Eq. (6); Cai et
    al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (9). Other libraries include the own class in the
    sum, which is :class:`~vicinal.losses.NormSoftmaxLoss`.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        sample_rate: fraction of the classes that a batch is compared with; see
            :class:`~vicinal.losses.center_softmax.CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see there.

    Raises:
        InputError: an argument is out of range, or, when called, there is only one class; see also
            :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = ProxyNCALoss(num_classes=2, dim=2)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(-0.4000)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 2.0,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, sample_rate=sample_rate, seed=seed, sharded=sharded)

    def row_values(self, rows: CenterRows) -> Tensor:
        if rows.num_classes == 1:
            raise InputError("ProxyNCALoss: one class cannot be told from others; give at least two classes")
        return rows.others - self.positive_logit(rows.own)


class ProxyNCAPlusPlusLoss(CenterSoftmaxLoss):
    """ProxyNCA++: the mean over all anchors i with class y of

        -log( exp(-|x_i - c_y|^2 / temperature) / sum_j exp(-|x_i - c_j|^2 / temperature) )

    over all classes including the own one; all vectors have norm 1, so it is normalized softmax with a scale of
    2 / temperature.

    Reference: Teh et al., "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis", ECCV 2020,
    Eq. (7), with its temperature. Its larger learning rate of proxies is `optimizer.lr_factors.loss` of a recipe, its
    pooling and balanced batches are settings of the model and the sampler.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        temperature: positive.
        sample_rate: fraction of the classes that a batch is compared with; see
            :class:`~vicinal.losses.center_softmax.CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see there.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = ProxyNCAPlusPlusLoss(num_classes=2, dim=2)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(0.0270)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        temperature: float = 1 / 9,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        check_positive(self, temperature=temperature)
        super().__init__(num_classes, dim, 2 / temperature, sample_rate=sample_rate, seed=seed, sharded=sharded)
        self.temperature = temperature


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
        k, centers = self.centers_per_class, at_least_float32(self._require_centers())
        if k == 1:
            return centers.new_zeros(())
        units = normalize(centers).view(-1, k, centers.shape[1])
        cosines = torch.bmm(units, units.mT)
        first, second = torch.triu_indices(k, k, 1, device=centers.device)
        distances = (2 - 2 * cosines[:, first, second]).clamp_min(MIN_SQUARED_DISTANCE).sqrt()
        return distances.mean() / 2
