"""What is added to a loss to shape the space of embeddings as a whole."""

from __future__ import annotations

from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_finite
from vicinal.losses.base import Loss, zero_or_nan
from vicinal.similarity import Source


class SimilarityRegularizer(Loss):
    """Similarity regulariser: draws the mean similarity of all pairs, a sample with itself included, to a target,

        (target - 1/n^2 sum over all i, j of S_ij)^2

    so that the embeddings use the whole space. It goes with any loss: `loss + 0.1 * SimilarityRegularizer()`. Labels
    do not matter, and time and memory grow with the batch alone: it takes no more than the sum of the embeddings. With
    references the mean is over all anchors and references.

    Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    ICML 2023, Eq. (7), with a weight of 0.1 and the target 0.3 (0.25 for images of 256 pixels); with other losses
    Table 6, as `0.9 * loss + 0.1 * SimilarityRegularizer()`.

    Args:
        target: the mean similarity wanted.

    Raises:
        InputError: target is not finite.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SimilarityRegularizer()(embeddings, torch.tensor([7, 7, 9, 9]))  # the mean is 0.485
        tensor(0.0342)
    """

    of_similarities = True

    def __init__(self, target: float = 0.3) -> None:
        super().__init__()
        check_finite(self, target=target)
        self.target = target

    def _parts(self, source: Source) -> dict[str, Tensor]:
        name = type(self).__name__
        if len(source) == 0 or source.columns == 0:
            return {name: zero_or_nan(source)}
        mean = source.mean_similarity()
        if source.shared:  # the mean over processes, with the gradient of this process's part of it
            mean = distributed.mean(mean.detach()) + (mean - mean.detach())
        return {name: (self.target - mean).square()}
