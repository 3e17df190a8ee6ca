"""The contextual loss as its paper writes it: dense, cubic, in float64: the library must compute the same.

:func:`contextual_similarity` is Algorithm 1 line by line, with the variants of Table 5 beside the lines that they
change, and autograd gives the gradient. Nothing of the library is used.
"""

from typing import Any

import torch
from torch import Tensor

TIE = 1e-13
"""Squared distances this close to a border are at it: equal numbers may be rounded differently."""

VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "step 1 only": {"intersection": False, "expansion": False},
    "step 1 only, sigmoid": {"intersection": False, "expansion": False, "theta": "sigmoid"},
    "without step 3": {"expansion": False},
    "without step 2": {"intersection": False},
    "min": {"conjunction": "min"},
    "sigmoid": {"theta": "sigmoid"},
    "sharp sigmoid": {"theta": "sigmoid", "temperature": 0.02},
    "M+ only": {"complement": False},
    "no stop-gradient": {"detach_sizes": False},
    "no gradient of |R|": {"detach_expansion_size": True},
    "corrected": {"correct_gradient": True},
    "alpha": {"alpha": 1.5},
    "M+ only, no stop-gradient": {"complement": False, "detach_sizes": False},
    "M+ only, without step 3": {"complement": False, "expansion": False},
    "without step 3, corrected": {"expansion": False, "correct_gradient": True},
    "no size is constant, corrected": {"detach_sizes": False, "correct_gradient": True},
    "min, M+ only, without step 3": {"conjunction": "min", "complement": False, "expansion": False},
    "min, without step 2": {"conjunction": "min", "intersection": False},
    "min, sigmoid": {"conjunction": "min", "theta": "sigmoid"},
    "sigmoid, corrected": {"theta": "sigmoid", "correct_gradient": True},
}
"""Name -> the arguments of the loss: the paper's definition, and others."""


def loss_of_labels(x: Tensor, labels: Tensor, k: int | None = None, **options: Any) -> Tensor:
    """Eq. (5) of a batch; k is the number of samples per class unless given."""
    same = labels[:, None] == labels[None, :]
    sizes = same.sum(dim=1).unique().tolist()
    if k is None and len(x) > 0:
        (k,) = sizes
    return loss_of_pairs(x, same, ~same, k or 0, **options)


def loss_of_pairs(x: Tensor, positive: Tensor, negative: Tensor, k: int, **options: Any) -> Tensor:
    """Eq. (5) of the pairs that are in one of the two masks [n, n]."""
    n = len(x)
    if n < 2:
        return 0 * x.sum()
    norm = x.norm(dim=1, keepdim=True)
    f = x / torch.where(norm > 0, norm, 1e-3)
    w = contextual_similarity(f @ f.T, positive, negative, min(k, n), **options)
    y = positive.to(w.dtype)
    counts = ((positive | negative) & ~torch.eye(n, dtype=torch.bool)).to(w.dtype)
    return (counts * (y - w).square()).sum() / n**2


def contextual_similarity(
    s: Tensor,
    positive: Tensor,
    negative: Tensor,
    k: int,
    epsilon: float = 0.05,
    alpha: float = 10.0,
    theta: str = "step",
    temperature: float = 0.1,
    conjunction: str = "product",
    complement: bool = True,
    intersection: bool = True,
    expansion: bool = True,
    detach_sizes: bool = True,
    detach_expansion_size: bool = False,
    correct_gradient: bool = False,
) -> Tensor:
    """Eq. (1) to (4); get_contextual_similarity of Algorithm 1."""
    d = (2 - 2 * s).clamp(min=0).masked_fill(torch.eye(len(s), dtype=torch.bool), 0.0)
    if correct_gradient:  # Eq. (10)
        d = Corrected.apply(d, positive, negative)

    def neighborhood(k: int) -> tuple[Tensor, Tensor]:  # Eq. (2), (23), (25), and the complement
        d_k = d.sort(dim=1).values[:, k - 1 : k].detach()
        x = -d + d_k + epsilon
        if theta == "sigmoid":  # Eq. (21); 1 - sigmoid(x), without losing its digits where it is small
            return torch.sigmoid(x / temperature), torch.sigmoid(-x / temperature)
        n = GreaterThanZero.apply(x, alpha)  # Eq. (1)
        return n, 1 - n

    def both(a: Tensor, b: Tensor) -> Tensor:
        return a * b if conjunction == "product" else torch.minimum(a, b)

    def intersections(a: Tensor) -> Tensor:  # Eq. (22)
        return a @ a.T if conjunction == "product" else torch.minimum(a[:, None, :], a[None, :, :]).sum(dim=2)

    # Step 1
    n_k, n_k_not = neighborhood(k)
    w = n_k

    # Step 2, Eq. (3), (24)
    if intersection:
        size = n_k.sum(dim=1, keepdim=True)
        size_not = n_k_not.sum(dim=1, keepdim=True)
        if detach_sizes:
            size, size_not = size.detach(), size_not.detach()
        m_plus = intersections(n_k) / size
        m_minus = intersections(n_k_not)
        empty = size_not.detach() == 0  # 0 / 0 is where all others are neighbors, as they should be for one class
        m_minus = (m_minus + empty) / torch.where(empty, 1.0, size_not)
        w = both(n_k, (m_plus + m_minus) / 2 if complement else m_plus)

    # Step 3, Eq. (4), (26), (27)
    if expansion:
        n_half, _ = neighborhood(k // 2)
        r = both(n_half, n_half.T)
        size = r.sum(dim=1, keepdim=True)
        w = (r @ w) / (size.detach() if detach_expansion_size else size)
        w = (w + w.T) / 2
    return w


class GreaterThanZero(torch.autograd.Function):
    """Eq. (1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return torch.where(x.isnan(), x, (x >= -TIE).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.alpha, None


class Corrected(torch.autograd.Function):
    """Eq. (10)."""

    @staticmethod
    def forward(ctx: Any, d: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(positive, negative)
        return d.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        positive, negative = ctx.saved_tensors
        g = torch.where(positive, g.clamp(min=0), g)
        return torch.where(negative, g.clamp(max=0), g), None, None
