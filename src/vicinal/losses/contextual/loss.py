"""ContextualLoss: the constructor, the choice of sparse or dense matrices, and positive pairs of a source."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Literal

import torch
from torch import Tensor

from vicinal.losses.base import Loss, zero_loss
from vicinal.losses.contextual.dense import dense_loss, row_block_loss
from vicinal.losses.contextual.matrix_form import Neighborhoods
from vicinal.losses.contextual.sparse import (
    NeighborSearch,
    SparseMatrix,
    build_neighborhoods,
    find_neighborhoods,
    sparse_loss,
)
from vicinal.losses.contextual.variants import Variant, with_gradient
from vicinal.similarity.embeddings import can_read_values
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import MaskedPairs
from vicinal.similarity.tiles import TilePass
from vicinal.utils import distributed
from vicinal.utils.arguments import MAX_INTEGER, check_choice, check_nonnegative, check_positive, is_integer, shown
from vicinal.utils.errors import InputError

MIN_SPARSE_SAMPLES = 256  # number of samples up to which dense matrices are faster however small the neighborhoods are
MAX_DENSITY = 1 / 40  # fraction of all samples, as neighbors or as a class, from which on dense matrices are faster


class ContextualLoss(Loss):
    """Contextual loss: the mean squared difference of contextual similarity w and equality of classes y,

        1/n^2 sum over i != j of (y_ij - w_ij)^2

    Contextual similarity is the fraction of its neighbors that a sample has in common with another. The neighbors N_i
    are the k nearest samples, including the sample itself, and those whose squared distance is at most epsilon larger;

        w1_ij = 1/2 (|N_i and N_j| / |N_i|  +  |neither in N_i nor in N_j| / |not in N_i|)   if j is in N_i, else 0
        w2_i  = mean of w1_p over those p that are among the k/2 nearest of i, and i among theirs
        w_ij  = (w2_ij + w2_ji) / 2

    The loss is 0 when the k - 1 nearest of every sample are the other samples of its class, by a margin of epsilon. The
    gradient of a sample depends on the neighbors of its neighbors, so that label noise has less influence than in
    pair losses. Membership in a neighborhood is a step function; alpha replaces its gradient.

    The computation is exact at any size. Where neighborhoods and classes are small, as neighborhoods are after the
    first epochs, time grows only with the search for neighbors, and memory with the batch. Otherwise it multiplies
    dense matrices, of which it holds about a dozen.

    A batch should have k samples per class. With references, which must contain the embeddings (offset), it is the loss
    of all references as one batch, and k must be given. In distributed training each process searches the neighbors of
    its part of the references, or computes its part of the rows of all dense matrices; with a sigmoid or minima it
    holds all rows of some. Where neighborhoods are small, every process computes the rest for the whole batch.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (1) to (5). The full loss of Eq. (6) is `0.8 * ContextualLoss() + 0.2 * ContrastiveLoss(0.75, 0.6) +
    0.1 * SimilarityRegularizer(0.3)`. The arguments after alpha are its ablations (Table 1 and 5, Fig. 16 and 17).

    Args:
        k: number of neighbors of a sample, including itself, at least 2; None: the number of samples per class in the
            batch, which synchronizes with a GPU.
        epsilon: by how much larger a squared distance may be than the k-th, not negative.
        alpha: replaces the gradient of a step.
        theta: "step", or "sigmoid" with its own gradient (Eq. 21).
        temperature: of the sigmoid of squared distances; the paper gives none.
        conjunction: "product" or "min" of two memberships, for membership in both.
        complement: whether common non-neighbors count too; otherwise w1 is the fraction of common neighbors alone.
        intersection: step 2; without it w1 is whether j is in N_i.
        expansion: step 3; without it w is w1. Without both, the loss is L1 of Eq. (32).
        detach_sizes: whether the sizes in w1 have no gradient.
        detach_expansion_size: whether the number of those p has no gradient.
        correct_gradient: whether the gradient that would push a positive pair apart or pull a negative pair together is
            removed (Eq. 10).

    Raises:
        InputError: an argument is out of range; when called: k is None and classes have different sizes or there are
            references, or the references do not contain the embeddings.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> ContextualLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.1541)
    """

    uses_only_similarities = True

    def __init__(
        self,
        k: int | None = None,
        epsilon: float = 0.05,
        alpha: float = 10.0,
        *,
        theta: Literal["step", "sigmoid"] = "step",
        temperature: float = 0.1,
        conjunction: Literal["product", "min"] = "product",
        complement: bool = True,
        intersection: bool = True,
        expansion: bool = True,
        detach_sizes: bool = True,
        detach_expansion_size: bool = False,
        correct_gradient: bool = False,
    ) -> None:
        super().__init__()
        check_nonnegative(self, epsilon=epsilon)
        check_positive(self, alpha=alpha, temperature=temperature)
        if k is not None and not (is_integer(k) and 2 <= k <= MAX_INTEGER):
            raise InputError(
                f"ContextualLoss: k = {shown(k)} must be at least 2, a whole number: a sample is its own nearest"
            )
        check_choice(self, ("step", "sigmoid"), theta=theta)
        check_choice(self, ("product", "min"), conjunction=conjunction)
        self.k = k
        self.variant = Variant(
            epsilon=epsilon,
            alpha=alpha,
            theta=theta,
            temperature=temperature,
            conjunction=conjunction,
            complement=complement,
            intersection=intersection,
            expansion=expansion,
            detach_sizes=detach_sizes,
            detach_expansion_size=detach_expansion_size,
            correct_gradient=correct_gradient,
        )

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in {"k": self.k, **asdict(self.variant)}.items())

    def value(self, source: PairSource) -> Tensor:
        is_divided = type(source) is PairSource and source.is_distributed
        has_memory = is_divided and source.num_references != distributed.world_size() * len(source)
        if self.k is None and (source.has_own_references or has_memory):
            raise InputError("ContextualLoss: with references classes have any number of samples; give k")
        batch = source.references_as_batch()
        if len(batch) < 2:
            return zero_loss(batch)
        k = min(self.k or _class_size(batch), len(batch))
        if self._may_be_sparse(batch):
            neighborhoods = find_neighborhoods(
                batch.anchors.detach(), k, self.variant.epsilon, MAX_DENSITY * len(batch), is_divided
            )
            if neighborhoods is not None:
                return self._sparse(batch, neighborhoods)
        if is_divided and self.variant.has_matrix_form:
            positive, valid_mask = _pair_masks(batch, distributed.own_rows(len(batch)))
            return row_block_loss(source.references, positive, valid_mask, k, self.variant)
        if is_divided and len(batch) % distributed.world_size() == 0:
            batch = replace(batch, anchors=source.references, references=source.references)
            return self._dense(batch, k, distributed.own_rows(len(batch)))
        return self._dense(batch, k)

    def tile_pass(self, source: PairSource) -> TilePass | None:
        if source.references is not source.anchors or len(source) < 2 or not self._may_be_sparse(source):
            return None
        n, k = len(source), min(self.k or _class_size(source), len(source))
        search = NeighborSearch(k, self.variant.epsilon, MAX_DENSITY * n)

        def finish(_: tuple[Tensor, ...]) -> Tensor:
            neighborhoods = build_neighborhoods(search.found, n, source.anchors.dtype)
            return self._dense(source, k) if neighborhoods is None else self._sparse(source, neighborhoods)

        return TilePass(finish, observe=search.observe)

    def _sparse(self, source: PairSource, neighborhoods: Neighborhoods[SparseMatrix]) -> Tensor:
        assert source.labels is not None
        return sparse_loss(source.anchors, source.labels, neighborhoods, self.variant)

    def _dense(self, source: PairSource, k: int, rows: slice | None = None) -> Tensor:
        rows = rows or slice(0, len(source))
        positive, valid_mask = _pair_masks(source, rows)

        def loss(anchors: Tensor) -> Tensor:
            similarity = source.with_anchors(anchors).similarity(rows)
            return dense_loss(similarity, positive, valid_mask, k, self.variant, rows.start)

        def loss_with_gradient(anchors: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
            with torch.set_grad_enabled(needs_gradient):
                value = loss(anchors.requires_grad_(needs_gradient))
            return value.detach(), torch.autograd.grad(value, anchors)[0] if needs_gradient else None

        if torch.compiler.is_compiling():
            return loss(source.anchors)
        return with_gradient(loss_with_gradient, source.anchors)

    def _may_be_sparse(self, source: PairSource) -> bool:
        # On a GPU products of dense matrices are fast, and the search for neighbors would synchronize with it.
        is_plain = type(source) is PairSource and source.is_by_label and can_read_values(source.anchors)
        if not is_plain or not self.variant.has_matrix_form or self.variant.correct_gradient:
            return False
        if len(source) <= MIN_SPARSE_SAMPLES:
            return False
        return float(_class_sizes(source).square().sum()) <= MAX_DENSITY * len(source) ** 2


def _pair_masks(source: PairSource, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Which pairs of some rows are positive, and which are valid, that is labeled, bool [rows, n] each; None: all."""
    if source.is_by_label:
        assert source.labels is not None
        return source.labels[rows, None] == source.labels, None
    pairs = source.pairs(rows)
    assert isinstance(pairs, MaskedPairs)
    return pairs.positive, pairs.positive | pairs.negative


def _class_sizes(source: PairSource) -> Tensor:
    assert source.labels is not None
    sizes: Tensor = source.labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    return sizes


def _class_size(source: PairSource) -> int:
    """The number of samples of each class, which must be the same for all classes."""
    sizes = _class_sizes(source) if source.is_by_label else 1 + _pair_masks(source, slice(0, len(source)))[0].sum(dim=1)
    smallest, largest = int(sizes.min()), int(sizes.max())
    if smallest != largest:
        raise InputError(
            f"ContextualLoss: the classes of the batch have {smallest} to {largest} samples; give k, or batches "
            "with the same number of samples of each class"
        )
    if smallest < 2:
        raise InputError("ContextualLoss: no class of the batch has two samples; give k, or batches of more per class")
    return smallest
