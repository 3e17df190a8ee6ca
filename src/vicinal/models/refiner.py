"""The context refiner: cross-attention blocks that move embeddings according to their nearest neighbors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models.context_block import START_TEMPERATURES, AttentionStart, BlockSettings, ContextBlock
from vicinal.models.execution import unit_vectors
from vicinal.models.model_folder import REFINER
from vicinal.models.saving import SavedModel, check_same_model
from vicinal.utils.arguments import check_bool, check_positive_integer, is_integer, is_number, shown
from vicinal.utils.errors import InputError


class ContextRefiner(SavedModel):
    """Moves embeddings according to their context, which are their nearest neighbors.

    Reference: Context Refiner, Equations 2 and 3, Algorithms 1 and 2. Block t computes
    ``e^t = normalize(e^(t-1) + CA^t(e^(t-1), C, C))``. The context C is the set of nearest neighbors of e^0, the same
    for all blocks. CA is multi-head attention: ``softmax(Q(q) K(k)^T / sqrt(width)) V(v)`` per head of this width, with
    a fourth matrix for the output. A new refiner is the identity.

    By default attention starts as a softmax of cosine similarities, and the update of a block as 0 times the mean of
    the neighbors, weighted by attention. With these start values, a refiner that is trained on few classes generalizes
    to others; ``attention_start="random", residual_gate=False, null_similarity=None, learn_temperature=False,
    num_heads=4`` is the cross-attention of the paper.

    A block has ``4 * inner_ratio * dim^2`` parameters, ``2 * mlp_ratio * dim^2`` with an MLP, and a few numbers: 8.4
    million at 512 dimensions and depth 8. (The paper counts 12 million, without details: as many as with `inner_ratio`
    1.5, or with `mlp_ratio` 1.)

    Args:
        dim: Dimension of the embeddings.
        depth: Number of blocks.
        num_heads: Number of attention heads; a divisor of `dim`.
        neighbors: Number of nearest neighbors in the context for which the refiner is made. 0 is the identity.
        dropout: Dropout probability of the attention output in training.
        context: The context of attention: the "neighbors", or only the embedding before refinement, "self" (Table 4
            of the paper, for the effect of blocks without neighbors).
        attention_start: What attention starts from. "similarity": Q and K are identities, scaled such that the logits
            are `temperature` times the cosine similarity (the spirit of Eq. 1); each of several heads sees its part of
            the dimensions, and this is the mean of their logits. "random": independent random matrices, as in the
            paper, whose logits have a standard deviation of about `temperature`.
        temperature: Factor of the logits; None takes 20 with "similarity" and 1 with "random".
        learn_temperature: Whether the temperature of each block is learned, from this one on.
        null_similarity: Initial similarity of the null neighbor, which lets attention refuse: another neighbor of each
            query, with this similarity and the zero vector as its value, so that an embedding moves less the farther
            its neighbors are. It is learned, for each block and head. None for no null neighbor.
        residual_gate: Whether the update of each block is multiplied with a learned number, which starts at 0, while
            the product of V and the output matrix starts as the identity. Otherwise V starts random and the output
            matrix as 0.
        inner_ratio: Width of queries, keys and values, over all heads, as a multiple of `dim`.
        mlp_ratio: Number of hidden units of an MLP with GELU after attention, as a multiple of `dim`; 0 for none.
        tie_weights: Whether all blocks have the same weights.
        min_similarity: Cosine similarity to the embedding before refinement below which a neighbor is ignored. An
            embedding without nearer neighbors is unchanged. None: all neighbors take part.

    Attributes:
        recipe: How the refiner was trained, as JSON values; empty if unknown.
        metrics: The metrics of the refiner, as JSON values; empty if unknown.
        model_fingerprint: Fingerprint of the embedder on whose embeddings it was trained; None if unknown.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> refiner = ContextRefiner(dim=8, depth=2, num_heads=2).eval()
        >>> embeddings = nn.functional.normalize(torch.randn(5, 8), dim=1)
        >>> context = nn.functional.normalize(torch.randn(5, 3, 8), dim=2)  # three neighbors of each
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
        num_heads: int = 1,
        neighbors: int = 8,
        dropout: float = 0.0,
        context: Literal["neighbors", "self"] = "neighbors",
        attention_start: AttentionStart = "similarity",
        temperature: float | None = None,
        learn_temperature: bool = True,
        null_similarity: float | None = 0.7,
        residual_gate: bool = True,
        inner_ratio: float = 1.0,
        mlp_ratio: float = 0.0,
        tie_weights: bool = False,
        min_similarity: float | None = None,
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
        if min_similarity is not None and not (is_number(min_similarity) and -1 <= min_similarity < 1):
            expected = "from -1 to below 1, or None"
            raise InputError(f"ContextRefiner: min_similarity = {shown(min_similarity)} must be {expected}")
        self.min_similarity = None if min_similarity is None else float(min_similarity)
        check_bool(self, learn_temperature=learn_temperature, residual_gate=residual_gate, tie_weights=tie_weights)
        # Python integers, since those of NumPy are not JSON values.
        self.block_settings = BlockSettings(
            dim=int(dim),
            num_heads=int(num_heads),
            dropout=dropout,
            attention_start=attention_start,
            temperature=START_TEMPERATURES.get(attention_start, 1.0) if temperature is None else temperature,
            learn_temperature=learn_temperature,
            null_similarity=null_similarity,
            residual_gate=residual_gate,
            inner_ratio=inner_ratio,
            mlp_ratio=mlp_ratio,
        )
        self.dim, self.num_heads, self.neighbors = int(dim), int(num_heads), int(neighbors)
        self.dropout, self.context, self.depth, self.tie_weights = dropout, context, int(depth), tie_weights
        self.model_fingerprint: str | None = None
        self.blocks = nn.ModuleList([ContextBlock(self.block_settings) for _ in range(1 if tie_weights else depth)])

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

        Each row adds up to 1, or to 0 if there is no neighbor; with a null neighbor, to 1 less its weight.
        """
        steps, blocks = self._apply_blocks(embeddings, context, None, mask), self._blocks(self.depth)
        self._check_shapes(embeddings, context, mask)
        mask = self._neighbor_mask(embeddings, context, mask)
        return torch.stack([block.weights(e, context, mask) for block, e in zip(blocks, steps, strict=False)])

    def truncate(self, depth: int) -> ContextRefiner:
        """A refiner of the first `depth` blocks, with the same weights; its recipe and metrics are empty."""
        self.check_depth(depth)
        if not depth:
            raise InputError(f"ContextRefiner: truncated to depth = 0 no block is left; use 1 to {self.depth}")
        refiner = copy(self)
        refiner._modules, refiner.recipe, refiner.metrics = {"blocks": self.blocks[:depth]}, {}, {}
        refiner.depth = int(depth)
        return refiner

    def _apply_blocks(
        self, embeddings: Tensor, context: Tensor, depth: int | None, mask: Tensor | None
    ) -> Iterator[Tensor]:
        depth = self.depth if depth is None else depth
        self.check_depth(depth)
        self._check_shapes(embeddings, context, mask)
        mask = self._neighbor_mask(embeddings, context, mask)
        yield (embeddings := unit_vectors(embeddings, self.training))
        for block in self._blocks(depth):
            yield (embeddings := block(embeddings, context, mask))

    def _neighbor_mask(self, embeddings: Tensor, context: Tensor, mask: Tensor | None) -> Tensor | None:
        """The neighbors that take part, bool [n, k]: those of the mask that are not too far; None for all."""
        if self.min_similarity is None:
            return mask
        similarities = torch.einsum("nd,nkd->nk", F.normalize(embeddings, dim=1), context)
        is_near = similarities >= self.min_similarity
        return is_near if mask is None else mask & is_near

    @torch.no_grad()
    def scale_updates(self, factor: float) -> None:
        """Multiply the update that every block adds to an embedding before normalization; with 0 it is the identity.

        Args:
            factor: 0 or more; a smaller step is safer and gains less.

        Raises:
            InputError: the factor is negative or not finite.

        Example:
            >>> refiner = ContextRefiner(dim=8, depth=2)
            >>> refiner.scale_updates(0.5)
        """
        if not is_number(factor) or not 0 <= factor < math.inf:
            raise InputError(f"ContextRefiner: factor = {shown(factor)} of the updates must be 0 or more")
        for block in self.blocks:
            cast(ContextBlock, block).scale_update(factor)

    def _blocks(self, depth: int) -> list[ContextBlock]:
        return [cast(ContextBlock, self.blocks[0 if self.tie_weights else number]) for number in range(depth)]

    def check_depth(self, depth: int) -> None:
        """Check that the refiner has at least `depth` blocks."""
        if not is_integer(depth) or not 0 <= depth <= self.depth:
            raise InputError(f"ContextRefiner: depth = {depth} is out of range; use 0 to {self.depth}")

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
            **asdict(self.block_settings),
            "depth": self.depth,
            "neighbors": self.neighbors,
            "context": self.context,
            "tie_weights": self.tie_weights,
            "min_similarity": self.min_similarity,
            "model_fingerprint": self.model_fingerprint,
        }

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], allow_imports: Sequence[str] = ()) -> ContextRefiner:
        others = ("recipe", "metrics", "model_fingerprint")
        refiner = cls(**{key: value for key, value in config.items() if key not in others})
        refiner.model_fingerprint = config["model_fingerprint"]
        return refiner

    def _check_shapes(self, embeddings: Tensor, context: Tensor, mask: Tensor | None) -> None:
        # Not len(embeddings), which torch.export would take for a constant.
        n, k = embeddings.shape[0], context.shape[1] if context.ndim == 3 else -1
        if embeddings.shape != (n, self.dim) or context.shape != (n, k, self.dim):
            shapes = f"{list(embeddings.shape)} and context {list(context.shape)}"
            raise InputError(f"ContextRefiner: embeddings {shapes} must be [n, {self.dim}] and [n, k, {self.dim}]")
        if mask is not None and (mask.shape != (n, k) or mask.dtype != torch.bool):
            found = f"{mask.dtype} {list(mask.shape)}"
            raise InputError(f"ContextRefiner: mask is {found}; it must be torch.bool [{n}, {k}]")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, depth={self.depth}, num_heads={self.num_heads}, neighbors={self.neighbors}"
