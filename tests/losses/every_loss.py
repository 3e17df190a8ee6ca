"""Every loss of the library with its default arguments, for tests that all of them pass: name -> a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from vicinal import losses
from vicinal.losses import CenterBasedLoss, ContextualLoss, ContrastiveLoss, Loss, MarginLoss, SimilarityRegularizer
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.weighting import EqualWeights, WeightedPairLoss

NUM_CLASSES, DIM = 4, 8
BASES = {"Loss", "PairLoss", "RowLoss", "RankingLoss", "CenterBasedLoss", "WeightedSum"}


def _with_defaults(kind: type[Loss]) -> Callable[[], Loss]:
    if issubclass(kind, CenterBasedLoss):
        return partial(kind, num_classes=NUM_CLASSES, dim=DIM)
    return partial(kind, k=2) if kind is ContextualLoss else kind


KINDS: dict[str, type[Loss]] = {
    name: kind
    for name, kind in vars(losses).items()
    if inspect.isclass(kind) and issubclass(kind, Loss) and name not in BASES
}
EVERY_LOSS: dict[str, Callable[[], Loss]] = {name: _with_defaults(kind) for name, kind in KINDS.items()} | {
    "MarginLoss, a beta per class": partial(MarginLoss, num_classes=NUM_CLASSES),
    "CrossBatchMemory": lambda: CrossBatchMemory(ContrastiveLoss(), size=100),
    "SiMix": lambda: SiMix(ContrastiveLoss()),
    "WeightedPairLoss": lambda: WeightedPairLoss(EqualWeights()),
    "a sum": lambda: ContrastiveLoss() + SimilarityRegularizer(),
}
