"""Losses: functions of similarities between anchors and references."""

from vicinal.losses.base import Loss, PairLoss, RowLoss, WeightedSum
from vicinal.losses.binned_ap import FastAPLoss, SoftBinAPLoss
from vicinal.losses.contextual import ContextualLoss
from vicinal.losses.histogram import HistogramLoss
from vicinal.losses.lifted import BinLiftedLoss, LiftedStructureLoss, LiftedStructureStarLoss
from vicinal.losses.margin import MarginLoss
from vicinal.losses.pairs import BinomialDevianceLoss, CircleLoss, ContrastiveLoss, MultiSimilarityLoss
from vicinal.losses.ranking import (
    BlackboxAPLoss,
    RankingLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
    SupAPLoss,
)
from vicinal.losses.regularizers import SimilarityRegularizer
from vicinal.losses.softmax import NCALoss, NPairsLoss, NTXentLoss, SupConLoss
from vicinal.losses.triplets import TripletLoss

__all__ = [
    "BinLiftedLoss",
    "BinomialDevianceLoss",
    "BlackboxAPLoss",
    "CircleLoss",
    "ContextualLoss",
    "ContrastiveLoss",
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
    "PairLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "RowLoss",
    "SimilarityRegularizer",
    "SmoothAPLoss",
    "SoftBinAPLoss",
    "SupAPLoss",
    "SupConLoss",
    "TripletLoss",
    "WeightedSum",
]
