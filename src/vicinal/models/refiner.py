"""The context refiner: cross-attention blocks that move embeddings according to their nearest neighbors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models.model_format import REFINER
from vicinal.models.modes import unit_vectors
from vicinal.models.saving import SavedModel, check_same_model
from vicinal.utils.arguments import check_positive_integer, is_integer
from vicinal.utils.errors import InputError


class ContextRefiner(SavedModel):
    """Moves embeddings according to their context, which are their nearest neighbors.

    Reference: Context Refiner, Equations 2 and 3, Algorithms 1 and 2. Block t computes
    ``e^t = normalize(e^(t-1) + CA^t(e^(t-1), C, C))``. The context C is the set of nearest neighbors of e^0, the same
    for all blocks. CA is multi-head attention: ``softmax(Q(q) K(k)^T / sqrt(dim / num_heads)) V(v)`` per head, with a
    fourth matrix for the output. The inputs of Q and K are multiplied by sqrt(dim), which is a scale of their weights,
    so that initial attention is neither uniform nor concentrated on one neighbor. A new refiner is the identity, since
    the output matrix is initialized with 0.

    It has ``4 * dim^2`` parameters per block and no others: 8.4 million at 512 dimensions and depth 8. (The paper's has
    12 million, without details.)

    Args:
        dim: Dimension of the embeddings.
        depth: Number of blocks.
        num_heads: Number of attention heads; a divisor of `dim`.
        neighbors: Number of nearest neighbors in the context for which the refiner is made. 0 is the identity.
        dropout: Dropout probability of the attention output in training.
        context: What the refiner attends to: the "neighbors", or only the embedding before refinement, "self" (Table 4
            of the paper, for the effect of blocks without neighbors).

    Attributes:
        recipe: How the refiner was trained, as JSON values; empty if unknown.
        metrics: The metrics of the refiner, as JSON values; empty if unknown.
        model_fingerprint: Fingerprint of the embedder on whose embeddings it was trained; None if unknown.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> refiner = ContextRefiner(dim=8, depth=2, num_heads=2).eval()
        >>> embeddings = F.normalize(torch.randn(5, 8), dim=1)
        >>> context = F.normalize(torch.randn(5, 3, 8), dim=2)  # three neighbors of each
        >>> torch.allclose(refiner(embeddings, context), embeddings)
        True
        >>> refiner.forward_intermediates(embeddings, context).shape
        torch.Size([3, 5, 8])
    """

    model_format = REFINER

    def __init__(
        self,
        dim: int,
        depth: int = 8,
        num_heads: int = 4,
        neighbors: int = 8,
        dropout: float = 0.0,
        context: Literal["neighbors", "self"] = "neighbors",
    ) -> None:
        super().__init__()
        if context not in ("neighbors", "self"):
            raise InputError(f"ContextRefiner: context = {context!r} must be neighbors or self")
        check_positive_integer(self, dim=dim, depth=depth, num_heads=num_heads)
        if not is_integer(neighbors) or neighbors < 0:
            raise InputError(f"ContextRefiner: neighbors = {neighbors} must be a whole number from 0 up")
        for name, value in {"dim": dim, "depth": depth, "num_heads": num_heads, "neighbors": neighbors}.items():
            if value > REFINER.limits[name]:
                raise InputError(f"ContextRefiner: {name} = {value} is too large; use at most {REFINER.limits[name]:,}")
        if dim % num_heads:
            raise InputError(f"ContextRefiner: num_heads = {num_heads} must divide dim = {dim}")
        if isinstance(dropout, str) or not 0 <= dropout < 1:
            raise InputError(f"ContextRefiner: dropout = {dropout} must be from 0 to below 1")
        # Python integers, since those of NumPy are not JSON values.
        self.dim, self.num_heads, self.neighbors = int(dim), int(num_heads), int(neighbors)
        self.dropout, self.context = dropout, context
        self.model_fingerprint: str | None = None
        self.blocks = nn.ModuleList([ContextBlock(dim, num_heads, dropout) for _ in range(depth)])

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def forward(
        self, embeddings: Tensor, context: Tensor, depth: int | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Refine embeddings.

        Args:
            embeddings: Float [n, dim], L2-normalized.
            context: Float [n, k, dim], the neighbors of each embedding in any order, L2-normalized; k may be 0.
            depth: The number of blocks to apply, from 0 to all of them (the default).
            mask: Bool [n, k], True for neighbors that take part; by default all. An embedding without any is unchanged.

        Returns:
            [n, dim], L2-normalized.

        Raises:
            InputError: A shape is different, or there are fewer blocks than `depth`.
        """
        *_, refined = self._apply_blocks(embeddings, context, depth, mask)
        return refined

    def forward_intermediates(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The embeddings before and after every block, [depth + 1, n, dim]; arguments as in :meth:`forward`."""
        return torch.stack(list(self._apply_blocks(embeddings, context, None, mask)))

    def attention_weights(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention weights of each block, averaged over its heads, [depth, n, k]; arguments as in :meth:`forward`.

        Each row adds up to 1, or to 0 if there is no neighbor.
        """
        steps = self._apply_blocks(embeddings, context, None, mask)
        blocks = [cast(ContextBlock, block) for block in self.blocks]
        return torch.stack([block.weights(e, context, mask) for block, e in zip(blocks, steps, strict=False)])

    def truncate(self, depth: int) -> ContextRefiner:
        """A refiner of the first `depth` blocks, which shares their weights; its recipe and metrics are empty."""
        self.check_depth(depth)
        if not depth:
            raise InputError(f"ContextRefiner: truncated to depth = 0 no block is left; use 1 to {self.depth}")
        refiner = copy(self)
        refiner._modules, refiner.recipe, refiner.metrics = {"blocks": self.blocks[:depth]}, {}, {}
        return refiner

    def _apply_blocks(
        self, embeddings: Tensor, context: Tensor, depth: int | None, mask: Tensor | None
    ) -> Iterator[Tensor]:
        depth = self.depth if depth is None else depth
        self.check_depth(depth)
        self._check_shapes(embeddings, context, mask)
        yield (embeddings := unit_vectors(embeddings, self.training))
        for block in self.blocks[:depth]:
            yield (embeddings := block(embeddings, context, mask))

    def check_depth(self, depth: int) -> None:
        """Check that there are at least `depth` blocks."""
        if not is_integer(depth) or not 0 <= depth <= self.depth:
            raise InputError(f"ContextRefiner: depth = {depth} is not there; use 0 to {self.depth}")

    def check_dim(self, dim: int) -> None:
        """Check that embeddings have the dimension of the refiner."""
        if dim != self.dim:
            raise InputError(
                f"embeddings have {dim} dimensions, the refiner is for {self.dim}; "
                "use the refiner that was trained for their model"
            )

    def check_model(self, fingerprint: str | None) -> None:
        """Check that embeddings are of the model for which the refiner was trained; None means an unknown model.

        Raises:
            InputError: Both models are known and differ.
        """
        remedy = "use the refiner that was trained for that model"
        check_same_model(self.model_fingerprint, fingerprint, "the refiner was trained for", remedy)

    def _get_config(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "depth": self.depth,
            "num_heads": self.num_heads,
            "neighbors": self.neighbors,
            "dropout": float(self.dropout),
            "context": self.context,
            "model_fingerprint": self.model_fingerprint,
        }

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], allow_imports: Sequence[str] = ()) -> ContextRefiner:
        others = ("recipe", "metrics", "model_fingerprint")
        refiner = cls(**{key: value for key, value in config.items() if key not in others})
        refiner.model_fingerprint = config["model_fingerprint"]
        return refiner

    def _check_shapes(self, embeddings: Tensor, context: Tensor, mask: Tensor | None) -> None:
        n, k = len(embeddings), context.shape[1] if context.ndim == 3 else -1
        if embeddings.shape != (n, self.dim) or context.shape != (n, k, self.dim):
            shapes = f"{list(embeddings.shape)} and context {list(context.shape)}"
            raise InputError(f"ContextRefiner: embeddings {shapes} must be [n, {self.dim}] and [n, k, {self.dim}]")
        if mask is not None and (mask.shape != (n, k) or mask.dtype != torch.bool):
            found = f"{mask.dtype} {list(mask.shape)}"
            raise InputError(f"ContextRefiner: mask is {found}; it must be torch.bool [{n}, {k}]")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, depth={self.depth}, num_heads={self.num_heads}, neighbors={self.neighbors}"


class ContextBlock(nn.Module):
    """``normalize(e + CA(e, C, C))``: cross-attention to the context with a residual connection (Eq. 2 and 3).

    The matrices of keys and values are not applied to the neighbors. ``Q(q) K(c)^T = (Q(q) K) c^T``, so K is applied to
    the query; and ``sum_j a_j V(c_j) = V(sum_j a_j c_j)``, so V is applied to the mean of the neighbors. The result is
    the same to rounding, and a block costs four products of [n, dim] with [dim, dim] for any number of neighbors. There
    are no biases: one of K would have no effect, and one of V would be lost in the normalization.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Parameter(_random_matrix(dim)) for _ in range(3))
        self.output = nn.Parameter(torch.zeros(dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeddings [n, dim], context [n, k, dim] and mask, bool [n, k] -> [n, dim]."""
        if not context.shape[1]:
            return embeddings
        attn_mask, is_isolated = _attention_mask(mask)
        # The heads are queries that attend to the same neighbors.
        queries = self._queries_in_context_space(embeddings)
        means = F.scaled_dot_product_attention(queries, context, context, attn_mask, scale=self._scale)
        values = torch.einsum("nhd,hcd->nhc", means, self._split_heads(self.value)).flatten(1)
        update = self.dropout(F.linear(values, self.output))
        refined = unit_vectors(embeddings + update, self.training)
        return refined if is_isolated is None else torch.where(is_isolated, embeddings, refined)

    def weights(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention weights [n, k], averaged over the heads; 0 for an embedding that has no neighbors."""
        attn_mask, is_isolated = _attention_mask(mask)
        queries = self._queries_in_context_space(embeddings)
        scores = torch.einsum("nhd,nkd->nhk", queries, context) * self._scale
        scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -math.inf)
        weights = scores.softmax(dim=-1).mean(dim=1)
        return weights if is_isolated is None else weights.masked_fill(is_isolated, 0.0)

    def _queries_in_context_space(self, embeddings: Tensor) -> Tensor:
        """``Q(e) K`` of each head, [n, num_heads, dim], to be compared with the neighbors themselves."""
        queries = F.linear(embeddings, self.query).view(
            len(embeddings), self.num_heads, len(self.query) // self.num_heads
        )
        return torch.einsum("nhc,hcd->nhd", queries, self._split_heads(self.key))

    def _split_heads(self, weight: Tensor) -> Tensor:
        return weight.view(self.num_heads, -1, len(weight))

    @property
    def _scale(self) -> float:
        """1 / sqrt(dim / num_heads), times sqrt(dim) for the queries and for the keys."""
        dim = self.output.shape[0]
        return dim / math.sqrt(dim / self.num_heads)


def _random_matrix(dim: int) -> Tensor:
    """A random matrix that preserves norms in expectation."""
    return torch.randn(dim, dim) / math.sqrt(dim)


def _attention_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The attention mask, bool [n, 1, k], and which embeddings have no neighbor, bool [n, 1].

    The attention mask of the latter is all True, since the softmax of an empty set is undefined.
    """
    if mask is None:
        return None, None
    is_isolated = ~mask.any(dim=1, keepdim=True)
    return (mask | is_isolated)[:, None], is_isolated
