"""One block of the context refiner: cross-attention to the neighbors, and an optional MLP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models.execution import unit_vectors
from vicinal.utils.arguments import is_number, shown
from vicinal.utils.errors import InputError

AttentionStart = Literal["similarity", "random"]
START_TEMPERATURES: dict[AttentionStart, float] = {"similarity": 20.0, "random": 1.0}
MAX_RATIO = 64  # of widths to the dimension


@dataclass(frozen=True)
class BlockSettings:
    """Sizes and initialization of a block; the fields are arguments of :class:`~vicinal.models.ContextRefiner`."""

    dim: int
    num_heads: int
    dropout: float
    attention_start: AttentionStart
    temperature: float
    learn_temperature: bool
    null_similarity: float | None
    residual_gate: bool
    inner_ratio: float
    mlp_ratio: float

    def __post_init__(self) -> None:
        if self.attention_start not in START_TEMPERATURES:
            starts = " or ".join(START_TEMPERATURES)
            raise InputError(f"ContextRefiner: attention_start = {shown(self.attention_start)} must be {starts}")
        if self.dim % self.num_heads:
            raise InputError(f"ContextRefiner: num_heads = {self.num_heads} must divide dim = {self.dim}")
        self._check("dropout", 0, 1, "from 0 to below 1", is_open=True)
        self._check("temperature", 1e-6, 1e6, "from 1e-6 to 1e6")
        self._check("inner_ratio", 1e-6, MAX_RATIO, f"above 0 and at most {MAX_RATIO}")
        self._check("mlp_ratio", 0, MAX_RATIO, f"from 0 to {MAX_RATIO}")
        if self.null_similarity is not None:
            self._check("null_similarity", -1, 1, "a cosine similarity, from -1 to 1, or None")

    def _check(self, name: str, low: float, high: float, expected: str, is_open: bool = False) -> None:
        """Check that a field is a number in a range, and make it a Python float."""
        value = getattr(self, name)
        if not is_number(value) or not low <= value <= high or (is_open and value == high):
            raise InputError(f"ContextRefiner: {name} = {shown(value)} must be {expected}")
        object.__setattr__(self, name, float(value))

    @property
    def head_width(self) -> int:
        """The number of dimensions of the queries, keys and values of each head."""
        return max(1, round(self.inner_ratio * self.dim / self.num_heads))

    @property
    def mlp_width(self) -> int:
        """The number of hidden units of the MLP; 0 for none."""
        return round(self.mlp_ratio * self.dim)

    @property
    def num_parameters(self) -> int:
        matrices = (4 * self.num_heads * self.head_width + 2 * self.mlp_width) * self.dim
        null = 0 if self.null_similarity is None else self.num_heads
        return matrices + self.learn_temperature + null + self.residual_gate


class ContextBlock(nn.Module):
    """``normalize(e + CA(e, C, C))``: cross-attention to the context with a residual connection (Eq. 2 and 3).

    The matrices of keys and values are not applied to the neighbors. ``Q(q) K(c)^T = (Q(q) K) c^T``, so K is applied to
    the query; and ``sum_j a_j V(c_j) = V(sum_j a_j c_j)``, so V is applied to the mean of the neighbors. The result is
    the same to rounding, and a block costs four products of [n, dim] with [dim, dim] for any number of neighbors. There
    are no biases: one of K would have no effect, and one of V would be lost in the normalization.
    """

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.settings = settings
        dim, width, self.num_heads = settings.dim, settings.head_width, settings.num_heads
        is_similarity = settings.attention_start == "similarity"
        # With this factor the logits start at the cosine similarity, or at a standard deviation of 1.
        self.scale = dim / width if is_similarity else dim / math.sqrt(width)
        start = _similarity_matrix if is_similarity else _random_matrix
        self.query, self.key = (nn.Parameter(start(self.num_heads * width, dim)) for _ in range(2))
        # A gated update starts as 0 times the mean of the neighbors.
        is_gated = settings.residual_gate
        value = (_similarity_matrix if is_gated else _random_matrix)(self.num_heads * width, dim)
        output = value.T * (dim / len(value)) if is_gated else torch.zeros(dim, len(value))
        self.value, self.output = nn.Parameter(value), nn.Parameter(output.contiguous())
        self.gate = nn.Parameter(torch.zeros(())) if is_gated else None
        log_temperature, null = torch.tensor(math.log(settings.temperature)), settings.null_similarity
        self.log_temperature = nn.Parameter(log_temperature) if settings.learn_temperature else None
        self.null_similarity = None if null is None else nn.Parameter(torch.full((self.num_heads,), null))
        self.dropout = nn.Dropout(settings.dropout)
        self.mlp = MLP(dim, settings.mlp_width) if settings.mlp_width else None

    def forward(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeddings [n, dim], context [n, k, dim] and mask, bool [n, k] -> [n, dim]."""
        if not context.shape[1]:
            return embeddings
        means = self._attention(embeddings, context, mask) @ context
        values = torch.einsum("nhd,hcd->nhc", means, self._split_heads(self.value)).flatten(1)
        update = self.dropout(F.linear(values, self.output))
        refined = unit_vectors(embeddings + (update if self.gate is None else self.gate * update), self.training)
        if self.mlp is not None:
            refined = unit_vectors(refined + self.dropout(self.mlp(refined)), self.training)
        return refined if mask is None else torch.where(mask.any(dim=1, keepdim=True), refined, embeddings)

    def weights(self, embeddings: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention weights [n, k], averaged over the heads; 0 for an embedding that has no neighbors."""
        weights = self._attention(embeddings, context, mask).mean(dim=1)
        return weights if mask is None else weights.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)

    def scale_update(self, factor: float) -> None:
        """Multiply the updates of attention and MLP by a factor."""
        attention = self.output if self.gate is None else self.gate
        for weight in [attention, *([] if self.mlp is None else [self.mlp.output])]:
            weight.mul_(factor)

    def _attention(self, embeddings: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """The attention weights [n, num_heads, k]; those of an embedding without neighbors are meaningless."""
        temperature = self.settings.temperature if self.log_temperature is None else self.log_temperature.exp()
        queries = self._queries_in_context_space(embeddings) * (self.scale * temperature)
        logits = queries @ context.transpose(1, 2)
        if mask is not None:  # the softmax of an empty set is undefined
            logits = logits.masked_fill(~(mask | ~mask.any(dim=1, keepdim=True))[:, None], -math.inf)
        if self.null_similarity is not None:  # its value is the zero vector, so that only its weight is needed
            null = (temperature * self.null_similarity).to(logits)[None, :, None].expand(logits.shape[0], -1, 1)
            logits = torch.cat([logits, null], dim=2)
        return logits.softmax(dim=2)[..., : context.shape[1]]

    def _queries_in_context_space(self, embeddings: Tensor) -> Tensor:
        """``Q(e) K`` of each head, [n, num_heads, dim], to be compared with the neighbors themselves."""
        queries = F.linear(embeddings, self.query).view(embeddings.shape[0], self.num_heads, self.settings.head_width)
        return torch.einsum("nhc,hcd->nhd", queries, self._split_heads(self.key))

    def _split_heads(self, weight: Tensor) -> Tensor:
        return weight.view(self.num_heads, self.settings.head_width, -1)


class MLP(nn.Module):
    """Two matrices with a GELU between them, of which the second starts at 0; unit vectors [n, dim] -> [n, dim]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Parameter(_random_matrix(hidden, dim)), nn.Parameter(torch.zeros(dim, hidden))

    def forward(self, embeddings: Tensor) -> Tensor:
        scale = math.sqrt(embeddings.shape[1])  # at which the hidden units have variance 1
        return F.linear(F.gelu(F.linear(scale * embeddings, self.hidden)), self.output)


def _random_matrix(rows: int, dim: int) -> Tensor:
    """A random matrix [rows, dim] that maps unit vectors to entries of variance 1 / dim."""
    return torch.randn(rows, dim) / math.sqrt(dim)


def _similarity_matrix(rows: int, dim: int) -> Tensor:
    """The rows of the identity, repeated; fewer than `dim` rows are random orthonormal vectors."""
    if rows < dim:
        return nn.init.orthogonal_(torch.empty(rows, dim))
    return torch.eye(dim)[torch.arange(rows) % dim]
