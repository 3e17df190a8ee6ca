"""Losses: functions of similarities between anchors and references."""

from vicinal.losses.base import Loss, PairLoss, RowLoss, WeightedSum
from vicinal.losses.histogram import HistogramLoss
from vicinal.losses.lifted import BinLiftedLoss, LiftedStructureLoss, LiftedStructureStarLoss
from vicinal.losses.margin import MarginLoss
from vicinal.losses.pairs import BinomialDevianceLoss, CircleLoss, ContrastiveLoss, MultiSimilarityLoss
from vicinal.losses.softmax import NCALoss, NPairsLoss, NTXentLoss, SupConLoss
from vicinal.losses.triplets import TripletLoss

__all__ = [
    "BinLiftedLoss",
    "BinomialDevianceLoss",
    "CircleLoss",
    "ContrastiveLoss",
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
    "RowLoss",
    "SupConLoss",
    "TripletLoss",
    "WeightedSum",
]
