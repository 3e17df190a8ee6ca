"""Forward correction: a loss of noisy labels whose class probabilities are those of the clean labels."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from vicinal.losses.base import Loss
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.class_centers import CenterRows, dense_logits
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_fraction, shown
from vicinal.utils.errors import InputError

__all__ = ["ForwardCorrection", "estimate_transition"]

MAX_ROW_ERROR = 1e-3  # how much the sum of a row of a transition matrix may differ from 1, by rounding


def __dir__() -> list[str]:
    return __all__


class ForwardCorrection(Loss):
    """Forward correction of the negative log-likelihood of a softmax over classes: the mean over all anchors of

        -log( sum_i T_iy p_i ),   T_ij = P(label j | true class i),

    where y is the label of an anchor, which may be noisy, and p_i the probability of class i by the model. The
    model that minimizes it on noisy labels minimizes the loss itself on clean labels; without noise both are equal.
    A margin of the loss is subtracted from the logit of class y in all p_i.

    A noise rate alone stands for noise in which all other labels are equally likely:

        T_ii = 1 - noise_rate,   T_ij = noise_rate / (C - 1).

    It needs no more memory than the loss itself; with a matrix, memory grows with anchors x classes.

    Reference: Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach", CVPR
    2017, Theorem 2; "F-correction" in other papers.

    Args:
        loss: a loss that is such a likelihood: CrossEntropyLoss, NormSoftmaxLoss, CosFaceLoss, ArcFaceLoss or
            ProxyNCAPlusPlusLoss, without label smoothing and sampling of classes.
        noise_rate: fraction of noisy labels, below 1 - 1 / C; None: :meth:`set_transition` gives the matrix, which the
            trainer of a recipe calls.

    Attributes:
        transition: float32 [C, C], the rows of true classes; None if it is given by `noise_rate`.

    Raises:
        InputError: the loss is of another kind or has label smoothing or sampling, or the noise rate is not from 0 to
            1; when called: the noise rate is too high, the transition matrix is missing, or as the loss itself.

    Example:
        >>> from vicinal.losses import CrossEntropyLoss
        >>> loss = ForwardCorrection(CrossEntropyLoss(num_classes=2, dim=2), noise_rate=0.25)
        >>> loss.loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).detach()  # -log(0.25 * 0.2689 + 0.75 * 0.7311)
        tensor(0.4853)
    """

    supports_references: ClassVar[bool] = False

    def __init__(self, loss: CenterSoftmaxLoss, noise_rate: float | None = None) -> None:
        super().__init__()
        _check_loss(loss)
        if noise_rate is not None:
            check_fraction(self, noise_rate=noise_rate)
        self.loss, self.noise_rate = loss, noise_rate
        # Not a buffer, which DistributedDataParallel would broadcast at every step; `get_extra_state` saves it.
        self.transition: Tensor | None = None

    def set_transition(self, matrix: Tensor) -> None:
        """Set the transition matrix.

        Args:
            matrix: float [C, C], entry [i, j] the probability that a sample of the true class i has the label j.

        Raises:
            InputError: the loss has a noise rate, the matrix is of another size, has negative entries, a row that does
                not sum to 1, or a label that no class has, or the centers are sharded.
        """
        if self.noise_rate is not None:
            raise InputError("ForwardCorrection: noise_rate and a transition matrix are given; give one of them")
        if self.loss.sharded:
            raise InputError(
                "ForwardCorrection: a transition matrix needs the centers of all classes; leave sharded out"
            )
        self.transition = _checked_matrix(matrix, self.loss.num_classes).float()

    def value(self, source: PairSource) -> Tensor:
        anchors = self.loss._check_source(source)
        if not len(anchors):
            return self.loss.value(source)
        if self.noise_rate is not None:
            return self.loss._mean_with_centers(self.loss._require_centers(), anchors, self._uniform_values)
        return self._matrix_values(anchors).mean()

    def _anchor_values(self, source: PairSource) -> Tensor:
        if self.noise_rate is not None:
            return self.loss._values_of_rows(source, self._uniform_values)
        return self._matrix_values(self.loss._check_source(source)).detach()

    def _uniform_values(self, rows: CenterRows) -> Tensor:
        """The corrected value of each anchor, from the uncorrected one, -log p_y."""
        value, rate = self.loss.row_values(rows), self.noise_rate
        assert rate is not None
        if rate == 0 or rows.num_classes == 1:
            return value
        wrong = rate / (rows.num_classes - 1)
        if not wrong < 1 - rate:
            raise InputError(
                f"ForwardCorrection: noise_rate = {rate} must be below {1 - 1 / rows.num_classes:g} with "
                f"{rows.num_classes} classes, at which labels carry no information"
            )
        # (1 - rate) p_y + wrong (1 - p_y) = wrong + (1 - rate - wrong) p_y, in logarithms.
        return -torch.logaddexp(torch.full_like(value, math.log(wrong)), math.log(1 - rate - wrong) - value)

    def _matrix_values(self, anchors: PairSource) -> Tensor:
        """The corrected value of each anchor, from the logits of all classes."""
        loss, labels, matrix = self.loss, self.loss._labels(anchors).long(), self._matrix(anchors)
        centers = loss._class_centers(loss._require_centers())
        similarity, logits = dense_logits(anchors.anchors, centers, *centers.parameters(anchors.anchors.dtype))
        own = torch.take_along_dim(similarity, labels[:, None, None], dim=1)[:, 0] / loss.scale
        logits = logits.scatter(1, labels[:, None], loss.positive_logit(own)[:, None])
        return logits.logsumexp(dim=1) - (logits + matrix.T[labels].to(logits).log()).logsumexp(dim=1)

    def _matrix(self, anchors: PairSource) -> Tensor:
        if self.transition is None:
            raise InputError("ForwardCorrection: noise_rate is missing; give it, or a transition matrix")
        self.transition = self.transition.to(anchors.anchors.device)
        return _checked_size(self.transition, self.loss.num_classes)

    def get_extra_state(self) -> dict[str, Any]:
        """The transition matrix, as part of `state_dict`."""
        return {"transition": self.transition}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the transition matrix."""
        self.transition = state["transition"]


def estimate_transition(probabilities: Tensor, quantile: float = 1.0) -> Tensor:
    """Estimate the transition matrix from the class probabilities of a model trained on the noisy labels.

    Row i holds the probabilities of the image that is most probably of class i, which should be a clear case:

        T_ij = p(label j | x_i),   x_i = argmax_x p(label i | x).

    Reference: Patrini et al., CVPR 2017, Eq. (12) and (13). There a quantile takes the place of the maximum where
    classes have many images: 0.97 for 10 classes, so that the image is a typical one.

    Args:
        probabilities: float [images, C] of training images, whose labels are not needed.
        quantile: x_i is the image at this quantile of the probabilities of class i (the next lower one); 1: the
            maximum. With C classes of equal size it should not be below 1 - 1 / C.

    Returns:
        float [C, C], rows that sum to 1.

    Raises:
        InputError: the probabilities are not [images, C] with rows that sum to 1, or the quantile is not from 0 to 1.

    Example:
        >>> estimate_transition(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]))
        tensor([[0.9000, 0.1000],
                [0.3000, 0.7000]])
    """
    if not 0 <= quantile <= 1:
        raise InputError(f"estimate_transition: quantile = {shown(quantile)} must be from 0 to 1")
    if probabilities.ndim != 2 or not probabilities.numel():
        raise InputError(f"estimate_transition takes probabilities [images, classes], not {list(probabilities.shape)}")
    _check_rows(probabilities, "estimate_transition: probabilities")
    position = math.floor(quantile * (len(probabilities) - 1))
    images = probabilities.sort(dim=0, stable=True).indices[position]
    return probabilities[images]


def _check_loss(loss: object) -> None:
    """Raise InputError unless a loss is the negative log-likelihood of a softmax over all classes."""
    if not isinstance(loss, CenterSoftmaxLoss):
        raise InputError(
            f"ForwardCorrection: loss must have class probabilities, like CrossEntropyLoss, not {shown(loss)}"
        )
    name = type(loss).__name__
    for method in ("row_values", "mean_value"):
        if getattr(type(loss), method) is not getattr(CenterSoftmaxLoss, method):
            raise InputError(
                f"ForwardCorrection: {name} is not only the likelihood of a softmax; give CrossEntropyLoss, "
                "NormSoftmaxLoss, CosFaceLoss, ArcFaceLoss or ProxyNCAPlusPlusLoss"
            )
    for argument, neutral in (("label_smoothing", 0), ("sample_rate", 1)):
        if getattr(loss, argument) != neutral:
            raise InputError(f"ForwardCorrection: {name} has {argument} = {getattr(loss, argument)}; leave it out")


def _checked_matrix(matrix: Tensor, num_classes: int | None) -> Tensor:
    """A transition matrix with rows that sum to 1 to rounding."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.numel():
        raise InputError(f"a transition matrix is [classes, classes], not {list(matrix.shape)}")
    _check_rows(_checked_size(matrix, num_classes), "transition matrix")
    if not bool((matrix.float() > 0).any(dim=0).all()):
        label = int((matrix.float() > 0).any(dim=0).long().argmin())
        raise InputError(f"transition matrix: no class has the label {label}; column {label} is 0")
    return matrix.double() / matrix.double().sum(dim=1, keepdim=True)


def _checked_size(matrix: Tensor, num_classes: int | None) -> Tensor:
    if num_classes not in (None, len(matrix)):
        raise InputError(f"the transition matrix has {len(matrix)} classes, and the loss {num_classes}")
    return matrix


def _check_rows(rows: Tensor, what: str) -> None:
    """Raise InputError unless each row is a distribution."""
    wrong = ~((rows >= 0).all(dim=1) & ((rows.double().sum(dim=1) - 1).abs() <= MAX_ROW_ERROR))  # also if NaN
    if bool(wrong.any()):
        row = int(wrong.long().argmax())
        raise InputError(f"{what}: row {row} is not a distribution, numbers of at least 0 that sum to 1")
