"""Losses as their papers write them, in plain PyTorch with whole matrices and autograd, for comparisons.

Written from the equations, without regard for memory. Each takes embeddings [n, d] and labels [n].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES_PER_CLASS = 4


def recall_at_k(
    embeddings: Tensor,
    labels: Tensor,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    rank_temperature: float = 1.0,
    similarity_temperature: float = 0.01,
) -> Tensor:
    """RS@k, Eq. (5) to (7), divided and clipped as said below Eq. (7); the query itself is not ranked."""
    similarity, positive = _similarity(embeddings), _positives(labels)
    query, match = positive.nonzero(as_tuple=True)
    steps = _steps(similarity, query, match, similarity_temperature)
    rank = 1 + steps.sum(1)
    k = torch.tensor(ks, device=rank.device, dtype=rank.dtype)[:, None]
    hits = torch.sigmoid((k - rank) / rank_temperature)
    found = hits.new_zeros(len(ks), len(labels)).index_add(1, query, hits)
    num_positives = positive.sum(1)
    recall = torch.minimum(found, k) / torch.minimum(k, num_positives)
    return 1 - recall[:, num_positives > 0].mean()


def smooth_ap(embeddings: Tensor, labels: Tensor, temperature: float = 0.01) -> Tensor:
    """Smooth-AP, Eq. (7) and the loss below it: the mean over the positives of rank among them by rank among all."""
    similarity, positive = _similarity(embeddings), _positives(labels)
    query, match = positive.nonzero(as_tuple=True)
    steps = _steps(similarity, query, match, temperature)
    precision = (1 + (steps * positive[query]).sum(1)) / (1 + steps.sum(1))
    num_positives = positive.sum(1)
    total = precision.new_zeros(len(labels)).index_add(0, query, precision)
    return 1 - (total / num_positives)[num_positives > 0].mean()


def multi_similarity(
    embeddings: Tensor,
    labels: Tensor,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float = 0.1,
) -> Tensor:
    """Multi-similarity, Eq. (15), of the pairs that Eq. (11) and (12) select; `base` is the published code's."""
    similarity, positive = _similarity(embeddings), _positives(labels)
    negative = labels[:, None] != labels
    hardest_positive = similarity.where(positive, torch.inf).amin(1, keepdim=True)
    hardest_negative = similarity.where(negative, -torch.inf).amax(1, keepdim=True)
    positive = positive & (similarity < hardest_negative + epsilon)
    negative = negative & (similarity > hardest_positive - epsilon)
    of_positives = ((-alpha * (similarity - base)).exp() * positive).sum(1)
    of_negatives = ((beta * (similarity - base)).exp() * negative).sum(1)
    return (of_positives.log1p() / alpha + of_negatives.log1p() / beta).mean()


def contextual(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Algorithm 1 of the contextual loss, with the loss of Eq. (5), k = 4 and epsilon = 0.05."""
    f = F.normalize(embeddings)
    distance = (2 - 2 * f @ f.T).clamp_min(0)
    near, close = (
        _GreaterThan.apply(-distance + 0.05, -distance.detach().topk(k, largest=False).values[:, -1:])
        for k in (SAMPLES_PER_CLASS, SAMPLES_PER_CLASS // 2)
    )
    common = near @ near.T / near.sum(1, keepdim=True).detach()
    far = 1 - near
    neither = far @ far.T / far.sum(1, keepdim=True).detach()
    shared = 0.5 * (common + neither) * near
    reciprocal = close * close.T
    expanded = reciprocal @ shared / reciprocal.sum(1, keepdim=True)
    error = (labels[:, None] == labels[None]).to(f) - 0.5 * (expanded + expanded.T)
    return (error.square() * _others(labels)).mean()


class CenterContrast(nn.Module):
    """Center contrastive loss, Eq. (5), with label smoothing in its softmax.

    Args:
        num_classes: number of classes.
        dim: dimension of the embeddings.
        margin: of the similarity with the own center.
    """

    def __init__(self, num_classes: int, dim: int, margin: float = 0.1) -> None:
        super().__init__()
        self.centers, self.margin = nn.Parameter(torch.randn(num_classes, dim)), margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        similarity = F.normalize(embeddings) @ F.normalize(self.centers).T
        is_own = F.one_hot(labels, len(self.centers)).to(similarity)
        targets = is_own * 0.9 + (1 - is_own) * (0.1 / (len(self.centers) - 1))
        log_softmax = (16 * (similarity - self.margin * is_own)).log_softmax(1)
        return (-(targets * log_softmax).sum(1) - 2 * (is_own * similarity).sum(1)).mean()


class _GreaterThan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return (x >= y).to(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        return upstream * 10.0, -upstream * 10.0


def _similarity(embeddings: Tensor) -> Tensor:
    f = F.normalize(embeddings)
    return f @ f.T


def _others(labels: Tensor) -> Tensor:
    """Which pairs are not of an embedding with itself."""
    return ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def _positives(labels: Tensor) -> Tensor:
    return (labels[:, None] == labels) & _others(labels)


def _steps(similarity: Tensor, query: Tensor, match: Tensor, temperature: float) -> Tensor:
    """For each pair of a query and a positive how far each other embedding is above it, [pairs, n]."""
    difference = similarity[query] - similarity[query, match][:, None]
    place = torch.arange(len(similarity), device=similarity.device)
    return torch.sigmoid(difference / temperature) * ((place != query[:, None]) & (place != match[:, None]))
