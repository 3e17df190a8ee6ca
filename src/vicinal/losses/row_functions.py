"""Functions of the similarities in a row that losses are composed of: smooth maxima, counts, distances.

In all of them padding, +inf among positives and -inf among negatives, contributes nothing to the value and has a zero
gradient. They are differentiable once. Where pairs may have weights, a pair of weight w counts as w pairs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW_COLUMNS = 64
"""So many columns are not worth the host's wait until it knows which of them are empty."""
MIN_TEMPERATURE = 1e-30
"""Smaller temperatures are raised to this one. Their reciprocals would be infinite, and results would be the same."""


def log_sum_exp(similarity: Tensor, scale: float, weights: Tensor | None = None) -> Tensor:
    """`log sum_k w_k exp(scale * s_k)` over each row, [rows]; -inf with a zero gradient for a row without pairs.

    Args:
        similarity: float [rows, columns].
        scale: positive for negative pairs and negative for positive pairs, so that the exponents of padding are -inf.
        weights: float [rows, columns], not negative, without gradient; None: all 1.

    Example:
        >>> log_sum_exp(torch.tensor([[1.0, 1.0, -math.inf], [-math.inf, -math.inf, -math.inf]]), 2.0)
        tensor([2.6931,   -inf])
    """
    if weights is not None:
        similarity = similarity + weights.log() / scale
    if torch.compiler.is_compiling():
        exponents = similarity * scale
        shift = exponents.detach().amax(dim=1, keepdim=True).clamp_min(torch.finfo(exponents.dtype).min)
        total = (exponents - shift).exp().sum(dim=1)
        # The minimum is for empty rows, where the logarithm would have an infinite gradient.
        value = total.clamp_min(0.5).log() + shift[:, 0]
        return torch.where(total > 0, value, -math.inf)
    return _LogSumExp.apply(similarity, scale)


class _LogSumExp(torch.autograd.Function):
    """One softmax gives both value and gradient: the largest of its entries is `exp(max - log_sum_exp)`."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, scale: float) -> Tensor:
        exponents = similarity * scale
        largest = exponents.amax(dim=1)
        empty = largest == -math.inf
        exponents[:, 0].masked_fill_(empty, 0.0)  # the softmax of an empty row would be NaN
        softmax = exponents.softmax(dim=1)
        ctx.save_for_backward(softmax, empty)
        ctx.scale = scale
        return largest - softmax.amax(dim=1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        softmax, empty = ctx.saved_tensors
        return softmax * (ctx.scale * upstream).masked_fill(empty, 0.0)[:, None], None


def softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`, exact for all x; 0 with a zero gradient for -inf."""
    return F.softplus(x, threshold=40.0)  # from 40 on it equals x even in float64


def log_one_plus_sum_exp(similarity: Tensor, scale: float, base: float = 0.0, weights: Tensor | None = None) -> Tensor:
    """`log(1 + sum_k w_k exp(scale * (s_k - base)))` over each row, [rows]; 0 for a row without pairs.

    Example:
        >>> log_one_plus_sum_exp(torch.tensor([[1.0, -math.inf]]), 2.0, base=1.0)
        tensor([0.6931])
    """
    return softplus(log_sum_exp(similarity, scale, weights) - scale * base)


def log_sum_exp_or_zero(similarity: Tensor, scale: float, base: float, weights: Tensor | None = None) -> Tensor:
    """`log sum_k w_k exp(scale * (s_k - base))` over each row, [rows]; 0 for a row without pairs."""
    return zero_if_empty(log_sum_exp(similarity, scale, weights) - scale * base)


def zero_if_empty(log_sums: Tensor) -> Tensor:
    """Replace -inf by 0 in results of :func:`log_sum_exp`; -inf leaves NaN in gradients even where it is masked."""
    return torch.where(log_sums > -math.inf, log_sums, 0.0)


def replace_padding(positives: Tensor, value: float) -> Tensor:
    """Replace the padding of positives, +inf, by another value."""
    return torch.where(positives < math.inf, positives, value)


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of weight times value over each row, [rows]; without weights the sum of the values."""
    return values.sum(dim=1) if weights is None else torch.linalg.vecdot(values, weights)


def count_positives(positives: Tensor, weights: Tensor | None = None) -> Tensor:
    """The number of positives of each anchor, or their weight, [rows], in the type of the similarities."""
    return (positives.detach() < math.inf).sum(dim=1).to(positives.dtype) if weights is None else weights.sum(1)


def max_positives(positives: Tensor) -> int:
    """The largest number of positives of an anchor, or an upper bound that saves waiting for a GPU."""
    columns = positives.shape[1]  # at most one more than the largest class has, unless pairs are given by masks
    return (
        columns if positives.device.type != "cpu" and columns <= FEW_COLUMNS else int(count_positives(positives).amax())
    )


def count_negatives(negatives: Tensor, weights: Tensor | None = None) -> Tensor:
    """The number of negatives of each anchor, or their weight, [rows], in the type of the similarities."""
    return (negatives.detach() > -math.inf).sum(dim=1).to(negatives.dtype) if weights is None else weights.sum(1)


def count_above_zero(hinges: Tensor, weights: Tensor | None = None) -> Tensor:
    """The number, or weight, of positive entries in each row of non-negative numbers, [rows], in their type."""
    return weighted_sum(hinges.detach().sign(), weights)


def replace_zeros(counts: Tensor) -> Tensor:
    """Replace 0 by 1 in counts that sums are divided by: a sum over no pairs is 0."""
    return torch.where(counts > 0, counts, 1.0)


def euclidean_distance(similarity: Tensor) -> Tensor:
    """The distance of two unit vectors from their cosine similarity, `sqrt(2 - 2 s)`; +inf for -inf.

    Below the square root of the type's precision the distance is constant: similarities there do not distinguish
    vectors, and the gradient would be infinite.

    Example:
        >>> euclidean_distance(torch.tensor([0.5, -1.0]))
        tensor([1., 2.])
    """
    return (2 - 2 * similarity).clamp_min(torch.finfo(similarity.dtype).eps).sqrt()


def inverse_temperature(temperature: float) -> float:
    """1 / temperature, the factor in a sigmoid, bounded for a temperature of 0."""
    return 1 / max(temperature, MIN_TEMPERATURE)


def lowest_exponent(dtype: torch.dtype) -> float:
    """The exponent up to which :func:`flushed_sigmoid` is 0."""
    return math.log(torch.finfo(dtype).tiny) / 3


def tolerance(similarity: Tensor) -> float:
    """Difference up to which similarities count as equal: tiles may round those of the same vectors differently."""
    return 16 * torch.finfo(similarity.dtype).eps


def flushed_sigmoid(x: Tensor, temperature: float) -> Tensor:
    """`sigmoid(x / temperature)`, flushed to exactly 0 where it is negligible; overwrites x if x needs no gradient.

    Products of such tiny numbers would be denormal, which makes processors many times slower.

    Example:
        >>> flushed_sigmoid(torch.tensor([-1.0, 0.0, 1.0]), temperature=0.01)
        tensor([0.0000, 0.5000, 1.0000])
    """
    lowest, factor = lowest_exponent(x.dtype), inverse_temperature(temperature)
    if x.requires_grad:
        return F.threshold(x * factor, lowest, -math.inf).sigmoid()
    return torch.threshold_(x.mul_(factor), lowest, -math.inf).sigmoid_()


def zero_with_gradient(similarity: Tensor, gradient: Tensor) -> Tensor:
    """0 for each row, [rows], with the given gradient with respect to the similarities.

    Example:
        >>> similarity = torch.tensor([[0.5, -math.inf]], requires_grad=True)
        >>> zero_with_gradient(similarity, torch.tensor([[2.0, 0.0]])).sum().backward()
        >>> similarity.grad
        tensor([[2., 0.]])
    """
    return _ZeroWithGradient.apply(similarity, gradient)


class _ZeroWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return similarity.new_zeros(len(similarity))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[:, None], None
