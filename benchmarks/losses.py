"""Speed and memory of the pair-based losses, forward and backward, beside the floor and beside pytorch-metric-learning.

    python -m benchmarks.losses                                  # everything; hours
    python -m benchmarks.losses --sizes 128 512 --threads 1      # less

What is measured, and how, is said in benchmarks/steps.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from benchmarks.peer import distances as pml_distances
from benchmarks.peer import losses as pml_losses
from benchmarks.peer import miners as pml_miners
from benchmarks.steps import Benchmark, LossFunction
from vicinal import losses, mining

OURS: dict[str, Callable[[], LossFunction]] = {
    "multi-similarity + miner": losses.MultiSimilarityLoss,
    "multi-similarity": partial(losses.MultiSimilarityLoss, miner=None),
    "contrastive": losses.ContrastiveLoss,
    "NT-Xent": losses.NTXentLoss,
    "SupCon": losses.SupConLoss,
    "NCA": losses.NCALoss,
    "N-pairs": losses.NPairsLoss,
    "lifted structure": losses.LiftedStructureLoss,
    "lifted structure *": losses.LiftedStructureStarLoss,
    "binomial deviance": losses.BinomialDevianceLoss,
    "BinLifted": losses.BinLiftedLoss,
    "circle": losses.CircleLoss,
    "triplet, all": losses.TripletLoss,
    "triplet, semi-hard": partial(losses.TripletLoss, triplets="semi-hard"),
    "triplet, batch hard": partial(losses.TripletLoss, miner=mining.HardestMiner()),
    "margin, distance-weighted": losses.MarginLoss,
    "histogram": losses.HistogramLoss,
}


def _mined(loss: Callable[..., Tensor], miner: Callable[..., object]) -> LossFunction:
    return lambda x, labels: loss(x, labels, miner(x, labels))


def _cosine() -> object:
    return pml_distances.CosineSimilarity()


PEERS: dict[str, Callable[[], LossFunction]] = {
    "multi-similarity + miner": lambda: _mined(
        pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=1), pml_miners.MultiSimilarityMiner(epsilon=0.1)
    ),
    "multi-similarity": lambda: pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=1),
    "contrastive": lambda: pml_losses.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=_cosine()),
    "NT-Xent": lambda: pml_losses.NTXentLoss(temperature=0.1),
    "SupCon": lambda: pml_losses.SupConLoss(temperature=0.1),
    "NCA": lambda: pml_losses.NCALoss(),
    "N-pairs": lambda: pml_losses.NPairsLoss(),
    "lifted structure": lambda: pml_losses.GeneralizedLiftedStructureLoss(),
    "circle": lambda: pml_losses.CircleLoss(m=0.4, gamma=80),
    "triplet, all": lambda: pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()),
    "triplet, semi-hard": lambda: _mined(
        pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()),
        pml_miners.TripletMarginMiner(margin=0.1, type_of_triplets="semihard", distance=_cosine()),
    ),
    "triplet, batch hard": lambda: _mined(
        pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()), pml_miners.BatchHardMiner(distance=_cosine())
    ),
    "margin, distance-weighted": lambda: _mined(
        pml_losses.MarginLoss(learn_beta=True), pml_miners.DistanceWeightedMiner()
    ),
    "histogram": lambda: pml_losses.HistogramLoss(n_bins=100),
}
"""N-pairs does less there: it takes one pair per class, ours all pairs. The others have our formulas."""

if __name__ == "__main__":
    Benchmark("benchmarks.losses", OURS, PEERS, compiles=True).run(__doc__)
