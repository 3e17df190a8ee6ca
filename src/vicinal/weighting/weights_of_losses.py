"""The weights that a loss gives the pairs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from vicinal.losses.base import Loss, loss_terms
from vicinal.similarity.embeddings import at_least_float32
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.devices import ieee_products
from vicinal.utils.errors import InputError


def pair_weights(loss: Loss, source: PairSource, *, signed: bool = False) -> Tensor:
    """Compute the weight that a loss gives each pair of a batch, `|dL / dS_ij|`.

    For a loss with a random miner these are the weights of its next call. The loss does not change: the call is not
    counted, and no parameter gets a gradient. Time and memory grow with n c, whatever the tiles.

    Args:
        loss: any loss that depends only on similarities, as almost all do, or a sum of such losses.
        source: n anchors and c references, from :meth:`vicinal.similarity.PairSource.from_batch`.
        signed: whether to return `dL / dS_ij` itself, which is negative where more similarity lowers the loss.

    Returns:
        float [n, c], at least float32; 0 for an anchor with itself and for entries that are not a pair.

    Raises:
        InputError: the loss depends on more than the pairs of this batch, for example on a memory.

    Example:
        >>> from vicinal.losses import NCALoss
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> pair_weights(NCALoss(), PairSource.from_batch(embeddings, torch.tensor([7, 7, 9])))
        tensor([[0.0000, 0.3543, 0.3543],
                [0.5498, 0.0000, 0.5498],
                [0.0000, 0.0000, 0.0000]])
    """
    device = source.anchors.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False), ieee_products(device):
        similarity = source.similarity(slice(0, len(source)))
    gradient = _gradient(loss, source, similarity)
    return gradient if signed else gradient.abs()


def similarity_weights(
    loss: Loss,
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor | None = None,
    *,
    dim: int = 512,
    signed: bool = False,
) -> Tensor:
    """Compute the weight that a loss gives each pair from similarities, which need not be those of embeddings.

    Args:
        loss: see :func:`pair_weights`.
        similarity: float [n, c], finite, of anchors to references, no anchor being a reference.
        positive: bool [n, c].
        negative: bool [n, c]; default: all pairs that are not positive.
        dim: dimension of the embeddings, which distance-weighted mining depends on.
        signed: whether to return `dL / dS_ij` itself.

    Returns:
        float [n, c], at least float32.

    Raises:
        InputError: see :func:`pair_weights`; or shapes or types do not match.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> similarity, positive = torch.tensor([[0.9, 0.7, 0.3]]), torch.tensor([[True, False, False]])
        >>> similarity_weights(ContrastiveLoss(positive_margin=None, reduction="sum"), similarity, positive)
        tensor([[1., 1., 0.]])
    """
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise InputError(f"similarity must be float [n, c], not {similarity.dtype} {list(similarity.shape)}")
    anchors, references = (similarity.new_zeros(length, dim) for length in similarity.shape)
    source = PairSource.from_batch(anchors, references=references, positive=positive, negative=negative)
    gradient = _gradient(loss, source, at_least_float32(similarity))
    return gradient if signed else gradient.abs()


@dataclass(frozen=True)
class _SimilarityPairSource(PairSource):
    """A source of given similarities, which are its anchors."""

    allows_sparse_gradient: ClassVar[bool] = False
    embedding_dim: int = 0

    @classmethod
    def like(cls, source: PairSource, similarity: Tensor) -> _SimilarityPairSource:
        """A source with the pairs of another and these similarities, [n, c]."""
        kept = {field.name: getattr(source, field.name) for field in fields(PairSource)}
        empty = similarity.new_zeros(similarity.shape[1], 0)
        return cls(**{**kept, "anchors": similarity, "references": empty, "embedding_dim": source.dim})

    @property
    def dim(self) -> int:
        return self.embedding_dim

    def similarity(self, span: slice) -> Tensor:
        return self.anchors[span].clone()  # rows may overwrite it

    def references_as_batch(self) -> PairSource:
        if self.offset != 0 or len(self) != self.num_references:
            raise InputError("this loss compares all references with one another; give a batch without references")
        return self

    def mean_similarity(self) -> Tensor:
        return self.anchors.mean()

    def add_gradient(self, totals: Sequence[Tensor], span: slice, grad_similarity: Tensor) -> None:
        totals[0][span] += grad_similarity


def _gradient(loss: Loss, source: PairSource, similarity: Tensor) -> Tensor:
    """`dL / dS`, [n, c]."""
    for term in loss_terms(loss):
        if not getattr(term, "uses_only_similarities", False):
            raise InputError(
                f"{type(term).__name__} has no pair weights of its own, because it does not depend only on "
                "similarities; give another loss, with references if it has a memory"
            )
    with torch.inference_mode(False), torch.enable_grad():
        similarity = similarity.detach().clone().requires_grad_()
        # A copy, because the call may be counted.
        parts = deepcopy(loss).to(similarity.device).parts(_SimilarityPairSource.like(source, similarity))
        (gradient,) = torch.autograd.grad(torch.stack(list(parts.values())).sum(), similarity)
    if source.offset is not None:  # a mean over all similarities includes those of an anchor with itself
        gradient.diagonal(source.offset).zero_()
    return gradient
