"""ProxyNCA and ProxyNCA++: neighbourhood components with a proxy, that is a center, for each class."""

from __future__ import annotations

from torch import Tensor

from vicinal.arguments import check_positive
from vicinal.center_tiles import CenterRows
from vicinal.errors import InputError
from vicinal.losses.center_softmax import CenterSoftmaxLoss


class ProxyNCALoss(CenterSoftmaxLoss):
    """ProxyNCA: the mean over all anchors i with class y of

        -log( exp(scale cos(x_i, c_y)) / sum_{j != y} exp(scale cos(x_i, c_j)) )

    with the own class not in the sum, so that the value may be negative. Squared distances of unit vectors are
    2 - 2 cos, so the paper's exponents are those of scale 2; its authors scale vectors to length 3, which is scale 18.

    Reference: Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017, Eq. (6); Cai et
    al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (9). Other libraries have the own class in the sum,
    which is :class:`~vicinal.losses.NormSoftmaxLoss`.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        scale: factor of the similarities, positive.
        sampled_share: share of the classes that a batch is compared with; see
            :class:`~vicinal.losses.center_softmax.CenterSoftmaxLoss`.
        seed: of their draws.
        sharded: divide the centers among processes; see there.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`, and
            with one class alone, which has no other.

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
        sampled_share: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, 0.0, sampled_share, seed, sharded)

    def row_values(self, rows: CenterRows) -> Tensor:
        if rows.classes == 1:
            raise InputError("ProxyNCALoss: the only class has no others to be told from; give at least two classes")
        return rows.others - self.positive_logit(rows.own)


class ProxyNCAPlusPlusLoss(CenterSoftmaxLoss):
    """ProxyNCA++: the mean over all anchors i with class y of

        -log( exp(-|x_i - c_y|^2 / temperature) / sum_j exp(-|x_i - c_j|^2 / temperature) )

    over all classes, one's own among them; all vectors have length 1, so it is normalised softmax with a scale of
    2 / temperature.

    Reference: Teh et al., "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis", ECCV 2020,
    Eq. (7), with its temperature. Its faster proxies are `optimizer.factors.loss` of a recipe, its pooling and
    balanced batches those of the model and the sampler.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        temperature: positive.
        sampled_share: share of the classes that a batch is compared with; see
            :class:`~vicinal.losses.center_softmax.CenterSoftmaxLoss`.
        seed: of their draws.
        sharded: divide the centers among processes; see there.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

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
        sampled_share: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        check_positive(self, temperature=temperature)
        super().__init__(num_classes, dim, 2 / temperature, 0.0, sampled_share, seed, sharded)
        self.temperature = temperature
