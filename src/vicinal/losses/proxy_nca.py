"""ProxyNCA and ProxyNCA++: neighborhood component analysis with a proxy, a center, for each class."""

from __future__ import annotations

from torch import Tensor

from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.class_centers import CenterRows
from vicinal.utils.arguments import check_positive
from vicinal.utils.errors import InputError


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
        >>> import torch
        >>> from vicinal.losses import ProxyNCALoss
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
    Eq. (7), with its temperature. Its larger learning rate of proxies is `optimizer.factors.loss` of a recipe, its
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
        >>> import torch
        >>> from vicinal.losses import ProxyNCAPlusPlusLoss
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
