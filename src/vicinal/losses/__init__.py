"""Losses of embeddings and labels, for deep metric learning."""

from vicinal.losses.base import Loss, WeightedSum
from vicinal.losses.center_based import CenterBasedLoss
from vicinal.losses.center_contrastive import CenterContrastiveLoss, ClusterContrastLoss
from vicinal.losses.center_softmax import NormSoftmaxLoss
from vicinal.losses.contextual.loss import ContextualLoss
from vicinal.losses.cross_entropy import CenterLoss, CrossEntropyLoss
from vicinal.losses.histogram import FastAPLoss, HistogramLoss, SoftBinAPLoss
from vicinal.losses.lifted import BinLiftedLoss, LiftedStructureLoss, LiftedStructureStarLoss
from vicinal.losses.pairs import BinomialDevianceLoss, CircleLoss, ContrastiveLoss, MultiSimilarityLoss
from vicinal.losses.proxy_anchor import ProxyAnchorLoss
from vicinal.losses.proxy_softmax import ArcFaceLoss, CosFaceLoss, ProxyNCALoss, ProxyNCAPlusPlusLoss, SoftTripleLoss
from vicinal.losses.ranking import BlackboxAPLoss, RankingLoss, RecallAtKLoss, RoadmapLoss, SmoothAPLoss, SupAPLoss
from vicinal.losses.regularizers import SimilarityRegularizer
from vicinal.losses.row_loss import PairLoss, RowLoss
from vicinal.losses.softmax import NCALoss, NPairsLoss, NTXentLoss, SupConLoss
from vicinal.losses.triplets import MarginLoss, TripletLoss
from vicinal.similarity.embeddings import check_finite

__all__ = [
    "ArcFaceLoss",
    "BinLiftedLoss",
    "BinomialDevianceLoss",
    "BlackboxAPLoss",
    "CenterBasedLoss",
    "CenterContrastiveLoss",
    "CenterLoss",
    "CircleLoss",
    "ClusterContrastLoss",
    "ContextualLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "FastAPLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "LiftedStructureStarLoss",
    "Loss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormSoftmaxLoss",
    "PairLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "RowLoss",
    "SimilarityRegularizer",
    "SmoothAPLoss",
    "SoftBinAPLoss",
    "SoftTripleLoss",
    "SupAPLoss",
    "SupConLoss",
    "TripletLoss",
    "WeightedSum",
    "check_finite",
]


def __dir__() -> list[str]:
    return __all__
