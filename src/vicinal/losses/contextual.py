"""The contextual loss: samples of a class should share all their neighbours, others none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.arguments import check_not_negative, check_positive
from vicinal.errors import InputError
from vicinal.losses.base import Loss, zero_or_nan
from vicinal.losses.contextual_definition import Definition
from vicinal.losses.contextual_dense import loss_of_similarities
from vicinal.losses.contextual_sparse import find_neighborhoods, loss_of_neighborhoods
from vicinal.pair_layout import MaskedPairs
from vicinal.similarity import Source, can_look

SMALL = 256
"""Samples up to which whole matrices are quicker however few neighbours there are."""
DENSE = 1 / 40
"""Share of all samples from which on, as neighbours or as a class, they are so many that whole matrices are quicker."""


class ContextualLoss(Loss):
    """Contextual loss: the mean squared difference of contextual similarity w and being of one class y,

        1/n^2 sum over i != j of (y_ij - w_ij)^2

    Contextual similarity is what share of its neighbours a sample shares with another. The neighbours N_i are the k
    nearest, the sample itself included, and those whose squared distance is no more than epsilon larger; then

        w1_ij = 1/2 (|N_i and N_j| / |N_i|  +  |neither in N_i nor in N_j| / |not in N_i|)   if j is in N_i, else 0
        w2_i  = mean of w1_p over those p that are among the k/2 nearest of i, as i is among theirs
        w_ij  = (w2_ij + w2_ji) / 2

    It is 0 when every sample's k - 1 nearest are those of its class, by a margin of epsilon. A sample's gradient
    depends on who is near its neighbours, so that a wrong label weighs less than in losses of pairs. Being near or not
    has no gradient; in its place stands a constant one, alpha.

    It is exact at any size. Where neighbourhoods and classes are small, as neighbourhoods are after the first epochs,
    time grows with the search for neighbours alone, and memory with the batch; else, and on a GPU, whole matrices are
    multiplied, a dozen of which are held.

    A batch should hold k of each class. With references, which must hold the embeddings (offset), it is the loss of all
    references as one batch, and k has to be given. Of several processes each computes that of the whole batch.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (1) to (5). The whole loss of Eq. (6) is `0.8 * ContextualLoss() + 0.2 * ContrastiveLoss(0.75, 0.6) +
    0.1 * SimilarityRegularizer(0.3)`. The options after alpha are its ablations (Table 1 and 5, Fig. 16 and 17).

    Args:
        k: neighbours of a sample, itself included, at least 2; None: the number of each class in the batch, for which a
            GPU is waited for.
        epsilon: by how much larger a squared distance may be than the k-th, not negative.
        alpha: slope in the place of that of a step.
        theta: "step", or a "sigmoid" of that steepness which `temperature` says, with its own slope (Eq. 21).
        temperature: of the sigmoid, of squared distances; the paper gives none.
        conjunction: "product" or "min" of two memberships, for both.
        complement: whether those that are no neighbours count too; else w1 is the share of neighbours alone.
        intersection: step 2; else w1 is whether j is in N_i.
        expansion: step 3; else w is w1. With neither, it is L1 of Eq. (32).
        detach_sizes: whether the sizes in w1 are without gradient.
        detach_expansion_size: whether the number of those p is without gradient.
        correct_gradient: leave out what would push a positive pair apart or pull a negative one together (Eq. 10).

    Raises:
        InputError: an argument is out of its range; when called: k is None and classes have different sizes or
            there are references, or the references do not hold the embeddings.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> ContextualLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.1541)
    """

    of_similarities = True

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
        check_not_negative(self, epsilon=epsilon)
        check_positive(self, alpha=alpha, temperature=temperature)
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 2):
            raise InputError(f"ContextualLoss: k = {k} must be at least 2, a whole number: a sample is its own nearest")
        if theta not in ("step", "sigmoid"):
            raise InputError(f'ContextualLoss: theta = {theta!r} must be "step" or "sigmoid"')
        if conjunction not in ("product", "min"):
            raise InputError(f'ContextualLoss: conjunction = {conjunction!r} must be "product" or "min"')
        self.k = k
        self.epsilon = epsilon
        self.alpha = alpha
        self.theta = theta
        self.temperature = temperature
        self.conjunction = conjunction
        self.complement = complement
        self.intersection = intersection
        self.expansion = expansion
        self.detach_sizes = detach_sizes
        self.detach_expansion_size = detach_expansion_size
        self.correct_gradient = correct_gradient

    @property
    def definition(self) -> Definition:
        """The arguments that say what contextual similarity is."""
        return Definition(**{field.name: getattr(self, field.name) for field in fields(Definition)})

    def _parts(self, source: Source) -> dict[str, Tensor]:
        if self.k is None and source.references is not source.anchors and not source.shared:
            raise InputError("ContextualLoss: with references classes have any number of samples; give k")
        source = source.among_references()
        zero = zero_or_nan(source)
        if len(source) < 2:
            return {type(self).__name__: zero}
        return {type(self).__name__: self._value(source) + zero.detach()}

    def _value(self, source: Source) -> Tensor:
        k = min(self.k or _class_size(source), len(source))
        if self._may_be_sparse(source):
            found = find_neighborhoods(source.anchors.detach(), k, self.epsilon, DENSE * len(source))
            if found is not None:
                assert source.labels is not None
                return loss_of_neighborhoods(source.anchors, source.labels, found, self.definition)
        positive, known = _positive_and_known(source)
        return _WithGradient.apply(
            lambda anchors: loss_of_similarities(
                source.with_anchors(anchors).similarity(0, len(source)), positive, known, k, self.definition
            ),
            source.anchors,
        )

    def _may_be_sparse(self, source: Source) -> bool:
        # On a GPU products of whole matrices are quick, and to look who is near would wait for it.
        plain = type(source) is Source and _by_label(source)
        few = self.theta == "step" and self.conjunction == "product" and not self.correct_gradient
        large = plain and few and len(source) > SMALL and can_look(source.anchors)
        return large and float(_class_sizes(source).square().sum()) <= DENSE * len(source) ** 2


class _WithGradient(torch.autograd.Function):
    """Forms the gradient with the value, by autograd, so that it is the same if asked for under autocast."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        needed = ctx.needs_input_grad[1]
        with torch.set_grad_enabled(needed):
            leaf = vectors.detach().requires_grad_(needed)
            value = function(leaf)
        if needed:
            ctx.save_for_backward(*torch.autograd.grad(value, leaf))
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        (gradient,) = ctx.saved_tensors
        return None, gradient * upstream


def _by_label(source: Source) -> bool:
    return source.masks is None and source.relation is None


def _positive_and_known(source: Source) -> tuple[Tensor, Tensor | None]:
    """Which pairs are positive, and of which that is known, bool [n, n]; None: of all, both ways."""
    if _by_label(source):
        assert source.labels is not None
        return source.labels[:, None] == source.labels, None
    pairs = source.pairs(0, len(source))
    assert isinstance(pairs, MaskedPairs)
    return pairs.positive, pairs.positive | pairs.negative


def _class_sizes(source: Source) -> Tensor:
    assert source.labels is not None
    sizes: Tensor = source.labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
    return sizes


def _class_size(source: Source) -> int:
    """How many samples each class has, where all have as many."""
    sizes = _class_sizes(source) if _by_label(source) else 1 + _positive_and_known(source)[0].sum(dim=1)
    smallest, largest = int(sizes.min()), int(sizes.max())
    if smallest != largest:
        raise InputError(
            f"ContextualLoss: the classes of the batch have {smallest} to {largest} samples; give k, or batches "
            "with as many of each class"
        )
    if smallest < 2:
        raise InputError("ContextualLoss: no class of the batch has two samples; give k, or batches of more per class")
    return smallest
