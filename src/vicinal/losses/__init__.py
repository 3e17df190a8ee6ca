"""Losses: functions of similarities between anchors and references."""

from vicinal.losses.base import Loss, RowLoss, WeightedSum
from vicinal.losses.pairs import MultiSimilarityLoss

__all__ = ["Loss", "MultiSimilarityLoss", "RowLoss", "WeightedSum"]
