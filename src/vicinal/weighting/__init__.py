"""General pair weighting: a pair loss is equivalent to a weight of each pair, and a weighting rule defines a loss.

A loss depends on the embeddings only through the similarities S, so its gradient is that of

    F = sum over negative pairs of w_ij S_ij - sum over positive pairs of w_ij S_ij,   w_ij = |dL / dS_ij| held constant

:func:`pair_weights` computes the weights of a loss, :class:`WeightedPairLoss` is the loss F of a weighting rule.

Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
Section 3.1, Eq. (1) to (3). It assumes that a loss pulls positive pairs together and pushes negative pairs apart.
SupCon also pushes apart a positive pair that is much closer than the anchor's other positives, and a ranking loss may
push apart a positive that is ranked before another one. Their weights would be negative, which
`pair_weights(..., signed=True)` shows.
"""

from vicinal.weighting.weighted_pair_loss import EqualWeights, LossWeights, WeightedPairLoss, WeightingRule
from vicinal.weighting.weights_of_losses import pair_weights, similarity_weights

__all__ = [
    "EqualWeights",
    "LossWeights",
    "WeightedPairLoss",
    "WeightingRule",
    "pair_weights",
    "similarity_weights",
]


def __dir__() -> list[str]:
    return __all__
