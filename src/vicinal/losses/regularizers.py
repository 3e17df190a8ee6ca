"""Regularisers that are added to a loss."""

from __future__ import annotations

from torch import Tensor

from vicinal.losses.base import Loss, zero_loss
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.arguments import check_finite


class SimilarityRegularizer(Loss):
    """Similarity regulariser: moves the mean similarity of all pairs, including i = j, towards a target,

        (target - 1/n^2 sum over all i, j of S_ij)^2

    so that the embeddings use the whole space. It can be added to any loss: `loss + 0.1 * SimilarityRegularizer()`.
    Labels are not used. Time and memory are linear in the batch, because only the sum of the embeddings is needed. With
    references the mean is over all anchors and references.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (7), with a weight of 0.1 and the target 0.3 (0.25 for images of 256 pixels); with other losses
    Table 6, as `0.9 * loss + 0.1 * SimilarityRegularizer()`.

    Args:
        target: the desired mean similarity.

    Raises:
        InputError: target is not finite.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SimilarityRegularizer()(embeddings, torch.tensor([7, 7, 9, 9]))  # the mean is 0.485
        tensor(0.0342)
    """

    uses_only_similarities = True

    def __init__(self, target: float = 0.3) -> None:
        super().__init__()
        check_finite(self, target=target)
        self.target = target

    def value(self, source: PairSource) -> Tensor:
        if source.is_empty:
            return zero_loss(source)
        mean = source.mean_similarity()
        if source.is_distributed:  # the mean over processes, with the gradient of this process's part
            mean = distributed.all_reduce_mean(mean.detach()) + (mean - mean.detach())
        return (self.target - mean).square()
