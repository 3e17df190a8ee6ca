"""The context refiner by the letter of the paper: float64, loops over samples, neighbors, heads and blocks."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models import ContextRefiner

PAPER: dict[str, Any] = {
    "attention_start": "random",
    "learn_temperature": False,
    "null_similarity": None,
    "residual_gate": False,
}


def trained(
    dim: int, depth: int, num_heads: int, dropout: float = 0.0, seed: int = 0, **settings: Any
) -> ContextRefiner:
    """A refiner in float64 that moves embeddings a good deal: no matrix is 0; that of the paper without settings."""
    torch.manual_seed(seed)
    refiner = ContextRefiner(dim, depth, num_heads, dropout=dropout, **(settings or PAPER)).double().eval()
    with torch.no_grad():
        for block in refiner.blocks:
            block.output.copy_(1.5 * torch.randn_like(block.output) / math.sqrt(dim))
            for name, start in (("gate", 1.0), ("null_similarity", 0.3), ("log_temperature", 0.7)):
                if getattr(block, name) is not None:
                    getattr(block, name).copy_(start + 0.2 * torch.randn_like(getattr(block, name)))
            if settings:
                block.query.add_(0.3 * torch.randn_like(block.query))
                block.key.add_(0.3 * torch.randn_like(block.key))
            if block.mlp is not None:
                block.mlp.output.copy_(torch.randn_like(block.mlp.output) / math.sqrt(dim))
    return refiner


def neighborhoods(n: int, k: int, dim: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Unit float64 embeddings [n, dim] and around each its context [n, k, dim]."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    context = embeddings[:, None] + torch.randn(n, k, dim, generator=generator, dtype=torch.float64)
    return F.normalize(embeddings, dim=1), F.normalize(context, dim=2)


def looked_at(block: nn.Module, e: Tensor, context: list[Tensor], head: int) -> list[Tensor]:
    """softmax(Q(q) K(k)^T / sqrt(d)) of Eq. 2 for one query and one head, a number a neighbor.

    With `similarity`, the logits are dim / width times the product, instead of sqrt(dim)^2 / sqrt(width).
    """
    settings, dim = block.settings, len(e)
    width = len(block.query) // block.num_heads
    own = range(head * width, (head + 1) * width)
    divisor = width if settings.attention_start == "similarity" else math.sqrt(width)
    query = block.query @ (math.sqrt(dim) * e)
    scores = []
    for neighbor in context:
        key = block.key @ (math.sqrt(dim) * neighbor)
        scores.append(sum(query[i] * key[i] for i in own) / divisor)
    if block.null_similarity is not None:
        scores.append(block.null_similarity[head])
    temperature = torch.exp(block.log_temperature) if settings.learn_temperature else settings.temperature
    powers = [torch.exp(temperature * score) for score in scores]
    return [power / sum(powers) for power in powers[: len(context)]]


def cross_attention(block: nn.Module, e: Tensor, context: list[Tensor]) -> Tensor:
    """CA(q, k, v) of Eq. 2, head by head, brought together by the output matrix."""
    width, heads = len(block.value) // block.num_heads, []
    for head in range(block.num_heads):
        weights = looked_at(block, e, context, head)
        values = [block.value @ neighbor for neighbor in context]
        together = sum(weight * value for weight, value in zip(weights, values, strict=True))
        heads.append(together[head * width : (head + 1) * width])
    update = block.output @ torch.cat(heads)
    return update if block.gate is None else block.gate * update


def mlp(block: nn.Module, e: Tensor) -> Tensor:
    """Two matrices with x Phi(x) between them."""
    hidden = block.mlp.hidden @ (math.sqrt(len(e)) * e)
    return block.mlp.output @ (hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))))


def steps(refiner: ContextRefiner, e: Tensor, context: list[Tensor]) -> list[Tensor]:
    """e^0 to e^T of one sample: Eq. 3, normalized as in Algorithms 1 and 2."""
    seen = [e / e.norm()]
    if refiner.min_similarity is not None:
        context = [neighbor for neighbor in context if sum(seen[0] * neighbor) >= refiner.min_similarity]
    for number in range(refiner.depth):
        block = refiner.blocks[0 if refiner.tie_weights else number]
        moved = seen[-1] + cross_attention(block, seen[-1], context) if context else seen[-1]
        moved = moved / moved.norm()
        if block.mlp is not None and context:
            moved = moved + mlp(block, moved)
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
