"""Center-based losses as their papers write them: one sample after the other, in float64."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-3)


def _cross_entropy(exponents: Tensor, own: int, smoothing: float) -> Tensor:
    """With the targets 1 - smoothing and smoothing / (C - 1)."""
    targets = torch.full_like(exponents.detach(), smoothing / max(len(exponents) - 1, 1))
    targets[own] = 1 - smoothing if len(exponents) > 1 else 1.0
    return -(targets * exponents.log_softmax(0)).sum()


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def cosine_softmax(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    scale: float,
    margin: float = 0.0,
    angle: float = 0.0,
    label_smoothing: float = 0.0,
    center_weight: float = 0.0,
    own_in_sum: bool = True,
) -> Tensor:
    """NormSoftmax, CosFace (margin), ArcFace (angle), CCL (center_weight) and ProxyNCA (own_in_sum)."""
    values, directions = [], unit(centers)
    for x, y in zip(embeddings, labels.tolist(), strict=True):
        cosines = directions @ unit(x)
        own = cosines[y] - margin
        if angle:
            theta = cosines[y].clamp(-1, 1).acos()
            own = (theta + angle).cos() if theta + angle <= math.pi else cosines[y] - angle * math.sin(angle)
        is_own = torch.arange(len(centers)) == y
        if own_in_sum:
            value = _cross_entropy(scale * torch.where(is_own, own, cosines), y, label_smoothing)
        else:
            value = -((scale * own).exp() / (scale * cosines[~is_own]).exp().sum()).log()
        values.append(value - 2 * center_weight * cosines[y])
    return _mean(values)


def stopped_center_contrast(
    embeddings: Tensor, labels: Tensor, centers: Tensor, scale: float, center_weight: float, **softmax: float
) -> Tensor:
    """CCL with centers that are constants in the contrastive part."""
    own = torch.stack([unit(centers[y]) @ unit(x) for x, y in zip(embeddings, labels.tolist(), strict=True)])
    return cosine_softmax(embeddings, labels, centers.detach(), scale, **softmax) - 2 * center_weight * own.mean()


def soft_triple(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    centers_per_class: int,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    regularizer: float = 0.2,
) -> Tensor:
    groups = unit(centers).view(-1, centers_per_class, centers.shape[1])
    values = []
    for x, y in zip(embeddings, labels.tolist(), strict=True):
        cosines = groups @ unit(x)
        to_classes = ((cosines / gamma).softmax(1) * cosines).sum(1)
        is_own = torch.arange(len(groups)) == y
        values.append(_cross_entropy(scale * torch.where(is_own, to_classes - margin, to_classes), y, 0.0))
    spread = [
        (2 - 2 * group[i + 1 :] @ center).clamp_min(1e-5).sqrt().sum()
        for group in groups
        for i, center in enumerate(group)
    ]
    return _mean(values) + regularizer * sum(spread) / max(len(groups) * centers_per_class * (centers_per_class - 1), 1)


def proxy_anchor(
    embeddings: Tensor, labels: Tensor, centers: Tensor, alpha: float = 32.0, margin: float = 0.1
) -> Tensor:
    pulled, pushed, directions = [], [], unit(embeddings)
    for p, center in enumerate(centers):
        cosines, own = directions @ unit(center), labels == p
        if own.any():
            pulled.append((1 + (-alpha * (cosines[own] - margin)).exp().sum()).log())
        pushed.append((1 + (alpha * (cosines[~own] + margin)).exp().sum()).log())
    return _mean(pulled) + _mean(pushed)


def cross_entropy(
    embeddings: Tensor, labels: Tensor, centers: Tensor, bias: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    pairs = zip(embeddings, labels.tolist(), strict=True)
    return _mean([_cross_entropy(centers @ x + bias, y, label_smoothing) for x, y in pairs])


def center_loss(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    bias: Tensor,
    means: Tensor,
    center_weight: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    squares = [(x - means[y]).square().sum() for x, y in zip(embeddings, labels.tolist(), strict=True)]
    return cross_entropy(embeddings, labels, centers, bias, label_smoothing) + center_weight * _mean(squares)
