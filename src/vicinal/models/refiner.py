"""The context refiner: embeddings that look at their nearest neighbours, by cross-attention in several blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.arguments import check_at_least_one, is_whole
from vicinal.errors import InputError
from vicinal.models.model_format import REFINER
from vicinal.models.saving import SavedModel, check_same_model


class ContextRefiner(SavedModel):
    """Moves finished embeddings by what lies around them: Context Refiner, Eq. 2 and 3, Algorithms 1 and 2.

    Block t takes ``e^t = normalise(e^(t-1) + CA^t(e^(t-1), C, C))``. C are the nearest neighbours of e^0, the same for
    all blocks. CA is attention with several heads: ``softmax(Q(q) K(k)^T / sqrt(dim / heads)) V(v)`` a head, the heads
    brought together by a fourth matrix. Q and K see their vectors times sqrt(dim), so that attention begins neither
    flat nor sharp; that is a scale of their weights, nothing else. A new refiner is the identity, for the fourth matrix
    starts at 0: untrained it does no harm.

    It has ``4 * dim^2`` parameters a block and no others: 8.4 million at 512 dimensions and depth 8. (The paper has 12
    million and does not say which.)

    Args:
        dim: of the embeddings.
        depth: blocks.
        heads: of the attention; divides `dim`.
        neighbors: how many neighbours it was made for; what finds contexts takes as many. 0 is the identity.
        dropout: share of what attention adds that is dropped in training.
        context: what it was made to look at: its "neighbors", or "itself", the embedding as it came (what blocks do
            without neighbours, Table 4 of the paper).

    Attributes:
        recipe: how it was trained, JSON values; empty if unknown.
        metrics: how good it was found, JSON values; empty if unknown.
        model_fingerprint: of the embedder that made the embeddings it was trained on; None if unknown.

    Raises:
        InputError: an impossible number.

    Example:
        >>> refiner = ContextRefiner(dim=8, depth=2, heads=2).eval()
        >>> embeddings = F.normalize(torch.randn(5, 8), dim=1)
        >>> context = F.normalize(torch.randn(5, 3, 8), dim=2)  # three neighbours of each
        >>> torch.allclose(refiner(embeddings, context), embeddings)
        True
        >>> refiner.at_depths(embeddings, context).shape
        torch.Size([3, 5, 8])
    """

    model_format = REFINER

    def __init__(
        self,
        dim: int,
        depth: int = 8,
        heads: int = 4,
        neighbors: int = 8,
        dropout: float = 0.0,
        context: Literal["neighbors", "itself"] = "neighbors",
    ) -> None:
        super().__init__()
        if context not in ("neighbors", "itself"):
            raise InputError(f"ContextRefiner: context = {context!r} must be neighbors or itself")
        check_at_least_one(self, dim=dim, depth=depth, heads=heads)
        if not is_whole(neighbors) or neighbors < 0:
            raise InputError(f"ContextRefiner: neighbors = {neighbors} must be a whole number from 0 up")
        for name, value in {"dim": dim, "depth": depth, "heads": heads, "neighbors": neighbors}.items():
            if value > REFINER.largest[name]:
                raise InputError(
                    f"ContextRefiner: {name} = {value} is too large; use at most {REFINER.largest[name]:,}"
                )
        if dim % heads:
            raise InputError(f"ContextRefiner: heads = {heads} must divide dim = {dim}")
        if isinstance(dropout, str) or not 0 <= dropout < 1:
            raise InputError(f"ContextRefiner: dropout = {dropout} must be from 0 to below 1")
        self.dim, self.heads, self.neighbors = int(dim), int(heads), int(neighbors)  # numpy's numbers are no JSON
        self.dropout, self.context = dropout, context
        self.model_fingerprint: str | None = None
        self.blocks = nn.ModuleList([ContextBlock(dim, heads, dropout) for _ in range(depth)])

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def forward(
        self, embeddings: Tensor, context: Tensor, depth: int | None = None, present: Tensor | None = None
    ) -> Tensor:
        """Refine.

        Args:
            embeddings: float [n, dim], of length 1.
            context: float [n, k, dim], the neighbours of each in any order, of length 1; k may be 0.
            depth: read out after so many blocks, 0 to all of them (the default).
            present: bool [n, k], which neighbours are there; all by default. An embedding without any stays.

        Returns:
            [n, dim], of length 1.

        Raises:
            InputError: other shapes, or a depth that is not there.
        """
        *_, refined = self._steps(embeddings, context, depth, present)
        return refined

    def at_depths(self, embeddings: Tensor, context: Tensor, present: Tensor | None = None) -> Tensor:
        """The embeddings before and after every block, [depth + 1, n, dim]; arguments as in :meth:`forward`."""
        return torch.stack(list(self._steps(embeddings, context, None, present)))

    def attention(self, embeddings: Tensor, context: Tensor, present: Tensor | None = None) -> Tensor:
        """How much each block looks at each neighbour, mean of its heads, [depth, n, k].

        Each row adds up to 1; to 0 where there is no neighbour. Arguments as in :meth:`forward`.
        """
        steps = self._steps(embeddings, context, None, present)
        looks = [cast(ContextBlock, block).weights for block in self.blocks]
        return torch.stack([look(e, context, present) for look, e in zip(looks, steps, strict=False)])

    def cut(self, depth: int) -> ContextRefiner:
        """The refiner of the first blocks only; it shares their weights, and nobody has measured it."""
        self.check_depth(depth)
        if not depth:
            raise InputError(f"ContextRefiner: cut to depth = 0 no block is left; use 1 to {self.depth}")
        cut = copy(self)
        cut._modules, cut.recipe, cut.metrics = {"blocks": self.blocks[:depth]}, {}, {}
        return cut

    def _steps(
        self, embeddings: Tensor, context: Tensor, depth: int | None, present: Tensor | None
    ) -> Iterator[Tensor]:
        depth = self.depth if depth is None else depth
        self.check_depth(depth)
        self._check_shapes(embeddings, context, present)
        yield (embeddings := F.normalize(embeddings, dim=-1))
        for block in self.blocks[:depth]:
            yield (embeddings := block(embeddings, context, present))

    def check_depth(self, depth: int) -> None:
        """Raise InputError when there are not so many blocks."""
        if not is_whole(depth) or not 0 <= depth <= self.depth:
            raise InputError(f"ContextRefiner: depth = {depth} is not there; use 0 to {self.depth}")

    def check_model(self, fingerprint: str | None) -> None:
        """Refuse the embeddings of another model than it was trained for; None is a model nobody knows.

        Raises:
            InputError: both models are known and differ.
        """
        what, remedy = "the refiner was trained for", "use the refiner that was trained for that model"
        check_same_model(self.model_fingerprint, fingerprint, what, remedy)

    def _described(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "depth": self.depth,
            "heads": self.heads,
            "neighbors": self.neighbors,
            "dropout": float(self.dropout),
            "context": self.context,
            "model_fingerprint": self.model_fingerprint,
        }

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> ContextRefiner:
        others = ("recipe", "metrics", "model_fingerprint")
        refiner = cls(**{key: value for key, value in config.items() if key not in others})
        refiner.model_fingerprint = config["model_fingerprint"]
        return refiner

    def check_dim(self, dim: int) -> None:
        """Raise InputError when embeddings have another dimension."""
        if dim != self.dim:
            raise InputError(
                f"embeddings have {dim} dimensions, the refiner is for {self.dim}; "
                "use the refiner that was trained for their model"
            )

    def _check_shapes(self, embeddings: Tensor, context: Tensor, present: Tensor | None) -> None:
        n, k = len(embeddings), context.shape[1] if context.ndim == 3 else -1
        if embeddings.shape != (n, self.dim) or context.shape != (n, k, self.dim):
            shapes = f"{list(embeddings.shape)} and context {list(context.shape)}"
            raise InputError(f"ContextRefiner: embeddings {shapes} must be [n, {self.dim}] and [n, k, {self.dim}]")
        if present is not None and (present.shape != (n, k) or present.dtype != torch.bool):
            what = f"{present.dtype} {list(present.shape)}"
            raise InputError(f"ContextRefiner: present is {what}; it must be torch.bool [{n}, {k}]")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, depth={self.depth}, heads={self.heads}, neighbors={self.neighbors}"


class ContextBlock(nn.Module):
    """``normalise(e + CA(e, C, C))``: one look at the neighbours (Eq. 2 and 3).

    The matrices of keys and values never meet the neighbours. ``Q(q) K(c)^T = (Q(q) K) c^T``, so K meets the query; and
    ``sum_j a_j V(c_j) = V(sum_j a_j c_j)``, so V meets their mean. That is the same to rounding, and whatever the
    number of neighbours a block costs four products of [n, dim] with [dim, dim]. (A bias of K would change nothing, and
    one of V could be learned nowhere better than in the normalisation: there are none.)
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Parameter(_random(dim)) for _ in range(3))
        self.output = nn.Parameter(torch.zeros(dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, embeddings: Tensor, context: Tensor, present: Tensor | None = None) -> Tensor:
        """[n, dim], from embeddings [n, dim], context [n, k, dim] and which of it is there, bool [n, k]."""
        if not context.shape[1]:
            return embeddings
        mask, alone = _mask(present)
        # The heads are queries of their own that look at the same neighbours.
        means = F.scaled_dot_product_attention(self._asked(embeddings), context, context, mask, scale=self._scale)
        values = torch.einsum("nhd,hcd->nhc", means, self._by_head(self.value)).flatten(1)
        added = self.dropout(F.linear(values, self.output))
        refined = F.normalize(embeddings + added, dim=-1)
        return refined if alone is None else torch.where(alone, embeddings, refined)

    def weights(self, embeddings: Tensor, context: Tensor, present: Tensor | None = None) -> Tensor:
        """Attention [n, k], mean of the heads; 0 for an embedding that has no neighbours."""
        mask, alone = _mask(present)
        scores = torch.einsum("nhd,nkd->nhk", self._asked(embeddings), context) * self._scale
        weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(dim=-1).mean(dim=1)
        return weights if alone is None else weights.masked_fill(alone, 0.0)

    def _asked(self, embeddings: Tensor) -> Tensor:
        """What each head looks for, in the space of the neighbours, [n, heads, dim]."""
        queries = F.linear(embeddings, self.query).view(len(embeddings), self.heads, len(self.query) // self.heads)
        return torch.einsum("nhc,hcd->nhd", queries, self._by_head(self.key))

    def _by_head(self, weight: Tensor) -> Tensor:
        return weight.view(self.heads, -1, len(weight))

    @property
    def _scale(self) -> float:
        """1 / sqrt(dim / heads), and sqrt(dim) twice, for queries and for keys."""
        dim = self.output.shape[0]
        return dim / math.sqrt(dim / self.heads)


def _random(dim: int) -> Tensor:
    """Keeps lengths on average."""
    return torch.randn(dim, dim) / math.sqrt(dim)


def _mask(present: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """For attention, bool [n, 1, k], and who has no neighbour at all, bool [n, 1], and is let look at all for once."""
    if present is None:
        return None, None
    alone = ~present.any(dim=1, keepdim=True)
    return (present | alone)[:, None], alone
