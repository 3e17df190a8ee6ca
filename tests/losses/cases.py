"""All pair losses of the library, each beside its formula."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from tests.losses import miner_references as by_hand
from tests.losses import references
from tests.losses.batches import Batch
from tests.losses.gradients import value_and_gradients
from tests.losses.miner_references import MinerReference
from vicinal.losses import (
    BinLiftedLoss,
    BinomialDevianceLoss,
    BlackboxAPLoss,
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    HistogramLoss,
    LiftedStructureLoss,
    LiftedStructureStarLoss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    PairLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    SoftBinAPLoss,
    SupAPLoss,
    SupConLoss,
    TripletLoss,
)
from vicinal.mining import (
    DistanceWeightedMiner,
    EasyPositiveMiner,
    HardestMiner,
    Miner,
    MultiSimilarityMiner,
    SemiHardMiner,
    SequentialMiner,
)


@dataclass(frozen=True)
class Case:
    """A loss with some arguments, and its reference.

    Attributes:
        kind: the loss's class.
        reference: the formula; takes anchors and the same arguments, less the miner.
        arguments: of the class; what is not given is the paper's, also in the reference.
        mined: what the loss's miner, given or its default, does to an anchor.
    """

    kind: type[PairLoss]
    reference: Callable[..., Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)
    mined: MinerReference | None = None

    def loss(self, **more: Any) -> PairLoss:
        """A fresh loss, whose random miner has drawn nothing yet."""
        return self.kind(**self.arguments, **more)

    @property
    def is_random(self) -> bool:
        """Whether the loss draws pairs, from each anchor's place in the batch."""
        loss = self.loss()
        return loss.miner is not None and loss.miner.is_random

    def suited(self, batch: Batch) -> Batch:
        """The batch with the labels 0, 1, 2, ... where the loss has something for each class."""
        return batch.with_classes() if "num_classes" in self.arguments else batch

    def values(self, batch: Batch, **more: Any) -> list[Tensor]:
        """Value and gradients by the library, in the type of the batch: see :func:`value_and_gradients`."""
        loss = self.loss(**more).to(batch.embeddings.dtype)
        return value_and_gradients(loss, self.suited(batch), list(loss.parameters()))

    def values_by_hand(self, batch: Batch) -> list[Tensor]:
        """Value and gradients by the reference, in float64."""
        learned = dict(self.loss().double().named_parameters())

        def formula(*batch: Any) -> Tensor:
            return self.by_hand(references.anchors_of(Batch(*batch)), **learned)

        return value_and_gradients(formula, self.suited(batch), list(learned.values()))

    def by_hand(self, anchors: list[references.Anchor], **learned: Tensor) -> Tensor:
        """The formula, of anchors whose pairs are still to be mined."""
        arguments = {name: value for name, value in self.arguments.items() if name not in ("miner", "learn_beta")}
        mined = [self.mined(anchor) for anchor in anchors] if self.mined else anchors
        return self.reference(mined, **(arguments | learned))


MINERS: dict[str, tuple[Miner, MinerReference]] = {
    "multi-similarity": (MultiSimilarityMiner(0.3), partial(by_hand.multi_similarity, epsilon=0.3)),
    "hardest": (HardestMiner(), by_hand.hardest),
    "top-k hard": (
        HardestMiner(num_positives=None, num_negatives=2),
        partial(by_hand.hardest, positives=None, negatives=2),
    ),
    "easy positive": (EasyPositiveMiner(), by_hand.easy_positive),
    "semi-hard": (SemiHardMiner(), by_hand.semi_hard),
    "distance-weighted": (DistanceWeightedMiner(), by_hand.distance_weighted),
    "two draws": (DistanceWeightedMiner(num_samples=2, seed=5), partial(by_hand.distance_weighted, draws=2, seed=5)),
    "chain": (
        SequentialMiner((EasyPositiveMiner(), SemiHardMiner(None), HardestMiner(num_negatives=2))),
        by_hand.chain(
            by_hand.easy_positive, partial(by_hand.semi_hard, margin=None), partial(by_hand.hardest, negatives=2)
        ),
    ),
    "both": (
        MultiSimilarityMiner() & HardestMiner(2, 3),
        by_hand.both(by_hand.multi_similarity, partial(by_hand.hardest, positives=2, negatives=3)),
    ),
    "either": (
        SemiHardMiner() | DistanceWeightedMiner(num_samples=1),
        by_hand.either(by_hand.semi_hard, partial(by_hand.distance_weighted, draws=1)),
    ),
}


def _mined(kind: type[PairLoss], reference: Callable[..., Tensor], miner: str, **arguments: Any) -> Case:
    """A loss of the pairs that a miner leaves."""
    return Case(kind, reference, {"miner": MINERS[miner][0], **arguments}, MINERS[miner][1])


DEFAULTS: dict[str, Case] = {
    "contrastive": Case(ContrastiveLoss, references.contrastive),
    "binomial": Case(BinomialDevianceLoss, references.binomial_deviance),
    "multi-similarity": Case(MultiSimilarityLoss, references.multi_similarity, mined=by_hand.multi_similarity),
    "circle": Case(CircleLoss, references.circle),
    "lifted": Case(LiftedStructureLoss, references.lifted_structure),
    "lifted*": Case(LiftedStructureStarLoss, references.lifted_structure_star),
    "BinLifted": Case(BinLiftedLoss, references.bin_lifted),
    "NT-Xent": Case(NTXentLoss, references.nt_xent),
    "N-pairs": Case(NPairsLoss, references.n_pairs),
    "NCA": Case(NCALoss, references.nca),
    "SupCon": Case(SupConLoss, references.sup_con),
    "triplet, all": Case(TripletLoss, references.triplet),
    "triplet, semi-hard": Case(TripletLoss, references.triplet, {"triplets": "semi-hard"}),
    "triplet, soft": Case(TripletLoss, references.triplet, {"soft": True, "margin": 0.0}),
    "triplet, hard": _mined(TripletLoss, references.triplet, "hardest"),
    "triplet, distance-weighted": _mined(TripletLoss, references.triplet, "distance-weighted"),
    "margin": Case(MarginLoss, references.margin, mined=by_hand.distance_weighted),
    "margin, beta per class": Case(MarginLoss, references.margin, {"num_classes": 12, "nu": 0.1, "miner": None}),
    "histogram": Case(HistogramLoss, references.histogram),
    "recall@k": Case(RecallAtKLoss, references.recall_at_k),
    "smooth AP": Case(SmoothAPLoss, references.smooth_ap),
    "SupAP": Case(SupAPLoss, references.sup_ap),
    "FastAP": Case(FastAPLoss, references.fast_ap),
    "SoftBinAP": Case(SoftBinAPLoss, references.soft_bin_ap),
    "blackbox AP": Case(BlackboxAPLoss, references.blackbox_ap),
}
"""Every loss as one would first use it."""


def _reductions(kind: type[PairLoss], reference: Callable[..., Tensor], *names: str, **arguments: Any) -> list[Case]:
    return [Case(kind, reference, {**arguments, "reduction": name}) for name in names]


_ANCHOR_MEANS = ("sum", "anchors", "contributing")
_PAIR_MEANS = ("pairs", "anchors", "contributing", "sum")
_VIOLATING_MEANS = ("violating", "pairs", "anchors", "sum")

_VARIANTS: list[Case] = [
    # Every reduction.
    *_reductions(ContrastiveLoss, references.contrastive, *_VIOLATING_MEANS),
    *_reductions(ContrastiveLoss, references.contrastive, *_VIOLATING_MEANS, positive_margin=None),
    *_reductions(BinomialDevianceLoss, references.binomial_deviance, *_ANCHOR_MEANS),
    *_reductions(MultiSimilarityLoss, references.multi_similarity, *_ANCHOR_MEANS, miner=None),
    *_reductions(CircleLoss, references.circle, *_ANCHOR_MEANS),
    *_reductions(LiftedStructureLoss, references.lifted_structure, *_ANCHOR_MEANS),
    *_reductions(LiftedStructureStarLoss, references.lifted_structure_star, *_ANCHOR_MEANS),
    *_reductions(BinLiftedLoss, references.bin_lifted, *_ANCHOR_MEANS),
    *_reductions(NTXentLoss, references.nt_xent, *_PAIR_MEANS),
    *_reductions(NPairsLoss, references.n_pairs, *_PAIR_MEANS),
    *_reductions(NCALoss, references.nca, *_ANCHOR_MEANS),
    *_reductions(SupConLoss, references.sup_con, *_ANCHOR_MEANS),
    *_reductions(TripletLoss, references.triplet, *_VIOLATING_MEANS),
    *_reductions(TripletLoss, references.triplet, *_VIOLATING_MEANS, triplets="semi-hard", margin=0.5),
    *_reductions(TripletLoss, references.triplet, *_VIOLATING_MEANS, soft=True),
    *_reductions(MarginLoss, references.margin, *_VIOLATING_MEANS, miner=None, nu=0.3),
    *_reductions(RecallAtKLoss, references.recall_at_k, *_ANCHOR_MEANS, k=3),
    *_reductions(SmoothAPLoss, references.smooth_ap, *_ANCHOR_MEANS, temperature=0.1),
    *_reductions(SupAPLoss, references.sup_ap, *_ANCHOR_MEANS, temperature=0.1, slope=5.0),
    *_reductions(FastAPLoss, references.fast_ap, *_ANCHOR_MEANS, bins=4),
    *_reductions(SoftBinAPLoss, references.soft_bin_ap, *_ANCHOR_MEANS, nodes=7),
    *_reductions(BlackboxAPLoss, references.blackbox_ap, *_ANCHOR_MEANS, interpolation=2.0),
    # Other constants.
    Case(ContrastiveLoss, references.contrastive, {"positive_margin": 0.5, "negative_margin": -0.2}),
    Case(BinomialDevianceLoss, references.binomial_deviance, {"alpha": 3.0, "beta": 40.0, "base": 0.5}),
    Case(MultiSimilarityLoss, references.multi_similarity, {"plus_one": False, "base": 0.5, "miner": None}),
    Case(MultiSimilarityLoss, references.multi_similarity, {"alpha": 3, "beta": 40, "base": 0.5, "miner": None}),
    Case(CircleLoss, references.circle, {"margin": 0.25, "scale": 128.0}),
    Case(LiftedStructureLoss, references.lifted_structure, {"margin": -2.0}),
    Case(LiftedStructureStarLoss, references.lifted_structure_star, {"alpha": 1.0, "beta": 10.0}),
    Case(BinLiftedLoss, references.bin_lifted, {"alpha": 3.0, "beta": 20.0, "base": 0.5}),
    Case(NTXentLoss, references.nt_xent, {"temperature": 0.5}),
    Case(NPairsLoss, references.n_pairs, {"scale": 16.0}),
    Case(NCALoss, references.nca, {"scale": 30.0}),
    Case(SupConLoss, references.sup_con, {"temperature": 0.02}),
    Case(TripletLoss, references.triplet, {"triplets": "semi-hard", "soft": True, "margin": 0.4}),
    Case(MarginLoss, references.margin, {"margin": 0.1, "beta": 0.8, "learn_beta": False, "miner": None}),
    Case(
        MarginLoss, references.margin, {"num_classes": 12, "nu": 0.2, "reduction": "anchors"}, DEFAULTS["margin"].mined
    ),
    Case(MarginLoss, references.margin, {"margin": 1.0, "beta": 0.4, "miner": None}),
    Case(RecallAtKLoss, references.recall_at_k, {"k": [1, 100]}),
    Case(RecallAtKLoss, references.recall_at_k, {"rank_temperature": 0.3, "similarity_temperature": 0.2}),
    Case(SupAPLoss, references.sup_ap, {"linear_from": 0.2}),
    Case(FastAPLoss, references.fast_ap, {"bins": 1}),
    Case(SoftBinAPLoss, references.soft_bin_ap, {"nodes": 2}),
    Case(BlackboxAPLoss, references.blackbox_ap, {"margin": 0.5, "interpolation": 0.3}),
    Case(HistogramLoss, references.histogram, {"bins": 1}),
    Case(HistogramLoss, references.histogram, {"bins": 7}),
    # Every miner with one loss.
    *(_mined(ContrastiveLoss, references.contrastive, miner, reduction="anchors") for miner in MINERS),
]

_MINED: list[Case] = [
    # One miner with every loss.
    *(_mined(case.kind, case.reference, "multi-similarity") for case in DEFAULTS.values() if not case.arguments),
    *(_mined(case.kind, case.reference, "distance-weighted") for case in DEFAULTS.values() if not case.arguments),
]


def _name(case: Case) -> str:
    miners = {miner: name for name, (miner, _) in MINERS.items()}
    shown = {name: miners.get(value, value) if name == "miner" else value for name, value in case.arguments.items()}
    shown |= {name: type(value).__name__ for name, value in case.arguments.items() if isinstance(value, PairLoss)}
    return f"{case.kind.__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"


PATHS: dict[str, Case] = DEFAULTS | {_name(case): case for case in _VARIANTS}
"""All of them in the variants that run code of their own."""

CASES: dict[str, Case] = PATHS | {_name(case): case for case in _MINED}
"""These, and every loss with the pairs that miners leave it."""

EACH: dict[str, Case] = DEFAULTS | {
    name: case for name, case in CASES.items() if case.kind is ContrastiveLoss and "miner" in case.arguments
}
"""Every loss and every miner once, for properties that neither reductions nor constants change."""

TURNS = pytest.mark.parametrize("turns", [pytest.param(1, marks=pytest.mark.slow), 3])
"""Every batch for each case, or quickly: a third of them."""


def in_turn(batches: dict[str, Batch], case: str, turns: int) -> dict[str, Batch]:
    """All batches for a loss with its default arguments; for other cases one of so many, beginning with another."""
    if case in DEFAULTS:
        return batches
    first = list(CASES).index(case) % turns
    return {name: batches[name] for name in list(batches)[first::turns]}
