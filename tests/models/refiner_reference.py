"""The context refiner by the letter of the paper: float64, loops over samples, neighbors, heads and blocks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models.refiner import ContextRefiner


def trained(dim: int, depth: int, num_heads: int, dropout: float = 0.0, seed: int = 0) -> ContextRefiner:
    """A refiner in float64 that moves embeddings a good deal: no matrix is 0."""
    torch.manual_seed(seed)
    refiner = ContextRefiner(dim, depth, num_heads, dropout=dropout).double().eval()
    with torch.no_grad():
        for block in refiner.blocks:
            block.output.copy_(1.5 * torch.randn(dim, dim) / math.sqrt(dim))
    return refiner


def neighborhoods(n: int, k: int, dim: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Unit float64 embeddings [n, dim] and around each its context [n, k, dim]."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    context = embeddings[:, None] + torch.randn(n, k, dim, generator=generator, dtype=torch.float64)
    return F.normalize(embeddings, dim=1), F.normalize(context, dim=2)


def looked_at(block: nn.Module, e: Tensor, context: list[Tensor], head: int) -> list[Tensor]:
    """softmax(Q(q) K(k)^T / sqrt(d)) of Eq. 2 for one query and one head, a number a neighbor."""
    dim = len(e)
    width = dim // block.num_heads
    own = range(head * width, (head + 1) * width)
    query = block.query @ (math.sqrt(dim) * e)
    scores = []
    for neighbor in context:
        key = block.key @ (math.sqrt(dim) * neighbor)
        scores.append(sum(query[i] * key[i] for i in own) / math.sqrt(width))
    powers = [torch.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def cross_attention(block: nn.Module, e: Tensor, context: list[Tensor]) -> Tensor:
    """CA(q, k, v) of Eq. 2, head by head, brought together by the output matrix."""
    width, heads = len(e) // block.num_heads, []
    for head in range(block.num_heads):
        weights = looked_at(block, e, context, head)
        values = [block.value @ neighbor for neighbor in context]
        together = sum(weight * value for weight, value in zip(weights, values, strict=True))
        heads.append(together[head * width : (head + 1) * width])
    return block.output @ torch.cat(heads)


def steps(refiner: ContextRefiner, e: Tensor, context: list[Tensor]) -> list[Tensor]:
    """e^0 to e^T of one sample: Eq. 3, normalized as in Algorithms 1 and 2."""
    seen = [e / e.norm()]
    for block in refiner.blocks:
        moved = seen[-1] + cross_attention(block, seen[-1], context) if context else seen[-1]
        seen.append(moved / moved.norm())
    return seen


def reference(refiner: ContextRefiner, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    """[depth + 1, n, dim], sample by sample."""
    there = torch.ones(context.shape[:2], dtype=torch.bool) if mask is None else mask
    samples = [
        steps(refiner, e, [c for c, is_there in zip(around, row, strict=True) if is_there])
        for e, around, row in zip(embeddings, context, there.tolist(), strict=True)
    ]
    return torch.stack([torch.stack(sample) for sample in samples], dim=1)
