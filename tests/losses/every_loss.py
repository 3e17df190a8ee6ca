"""Every loss of the library, for tests that all of them pass."""

import inspect
from collections.abc import Callable
from functools import partial

from tests.losses import cases, center_cases
from tests.losses.batches import Batch, nasty_batches
from tests.losses.contextual_reference import VARIANTS
from vicinal import losses
from vicinal.losses import (
    CenterBasedLoss,
    ContextualLoss,
    ContrastiveLoss,
    Loss,
    MarginLoss,
    RoadmapLoss,
    SimilarityRegularizer,
    SmoothAPLoss,
)
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
"""Name of a class -> a loss with the default arguments, for embeddings of `DIM` dimensions."""

Make = Callable[[int, int], Loss]
"""Creates a loss for so many classes and dimensions."""


def _of_pairs(case: cases.Case) -> Make:
    return lambda classes, dim: case.loss()


def _contextual(options: dict[str, object]) -> Make:
    return lambda classes, dim: ContextualLoss(3, **options)  # type: ignore[arg-type]


PATHS: dict[str, Make] = {
    **{name: _of_pairs(case) for name, case in cases.EACH.items()},
    **{name: case.loss for name, case in center_cases.CASES.items()},
    **{f"contextual, {name}": _contextual(options) for name, options in VARIANTS.items()},
    "regularizer": lambda classes, dim: SimilarityRegularizer(),
    "ROADMAP": lambda classes, dim: RoadmapLoss(),
    "SiMix": lambda classes, dim: SiMix(SmoothAPLoss()),
    "SiMix, few": lambda classes, dim: SiMix(MarginLoss(), virtual_per_class=2),
}
"""Every loss and every miner, and the variants that run code of their own."""


BATCHES = {name: batch.with_classes() for name, batch in nasty_batches().items()}


def batches_of(name: str) -> dict[str, Batch]:
    """The batches that a loss of `PATHS` can be called with."""
    if name in center_cases.CASES:
        few = ("one sample", "one class", "two of a class") if name == "ProxyNCA" else ()  # one class has no others
        return {key: batch for key, batch in BATCHES.items() if batch.references is None and key not in few}
    if name.startswith("contextual"):  # references must contain the batch
        return {key: batch for key, batch in BATCHES.items() if batch.references is None or batch.offset is not None}
    return BATCHES


def loss_for(name: str, batch: Batch) -> Loss:
    """A loss of `PATHS` for a batch, the same in every call."""
    return PATHS[name](int(batch.labels.max()) + 1, batch.embeddings.shape[1])
