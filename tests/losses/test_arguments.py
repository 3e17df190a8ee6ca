"""Arguments that losses and miners refuse, each in one line with the class, the argument and the value."""

import inspect
import math
import re
from typing import Any

import pytest
import torch

from tests.losses.every_loss import DIM, KINDS
from tests.refusals import refused_call
from vicinal import mining
from vicinal.losses import (
    ArcFaceLoss,
    BinLiftedLoss,
    BinomialDevianceLoss,
    BlackboxAPLoss,
    CenterBasedLoss,
    CenterContrastiveLoss,
    CenterLoss,
    CircleLoss,
    ClusterContrastLoss,
    ContextualLoss,
    ContrastiveLoss,
    CosFaceLoss,
    CrossEntropyLoss,
    FastAPLoss,
    HistogramLoss,
    LiftedStructureLoss,
    LiftedStructureStarLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    NPairsLoss,
    NTXentLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SimilarityRegularizer,
    SmoothAPLoss,
    SoftBinAPLoss,
    SoftTripleLoss,
    SupAPLoss,
    SupConLoss,
    TripletLoss,
    WeightedSum,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mining import (
    DistanceWeightedMiner,
    EasyPositiveMiner,
    HardestMiner,
    Miner,
    MultiSimilarityMiner,
    SemiHardMiner,
    SequentialMiner,
)
from vicinal.mixing import SiMix
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.errors import InputError
from vicinal.weighting import EqualWeights, LossWeights, WeightedPairLoss

STEEP = (BinomialDevianceLoss, MultiSimilarityLoss, LiftedStructureStarLoss, BinLiftedLoss)
NOT_POSITIVE = (0, -1.0, math.nan, math.inf)
NOT_FINITE = (math.nan, math.inf)

CENTER_BASED = [kind for kind in KINDS.values() if issubclass(kind, CenterBasedLoss)]
FRACTIONS = (-0.1, 1.1, math.nan)
SCALED = (NormSoftmaxLoss, CosFaceLoss, ArcFaceLoss, CenterContrastiveLoss, ClusterContrastLoss, ProxyNCALoss)
SMOOTHED = (NormSoftmaxLoss, ArcFaceLoss, CenterContrastiveLoss, ClusterContrastLoss, CrossEntropyLoss, CenterLoss)
SAMPLED = (NormSoftmaxLoss, CosFaceLoss, ArcFaceLoss, CenterContrastiveLoss, ProxyNCALoss, ProxyNCAPlusPlusLoss)

IMPOSSIBLE: list[tuple[type, str, object]] = [
    # Pair losses.
    *((kind, name, value) for kind in STEEP for name in ("alpha", "beta") for value in NOT_POSITIVE),
    *((kind, "base", value) for kind in STEEP if kind is not LiftedStructureStarLoss for value in NOT_FINITE),
    *((kind, "scale", value) for kind in (CircleLoss, NPairsLoss, NCALoss) for value in NOT_POSITIVE),
    *((kind, "temperature", value) for kind in (NTXentLoss, SupConLoss) for value in NOT_POSITIVE),
    *((kind, "margin", value) for kind in (CircleLoss, LiftedStructureLoss, TripletLoss) for value in NOT_FINITE),
    *((ContrastiveLoss, name, value) for name in ("positive_margin", "negative_margin") for value in NOT_FINITE),
    *((MarginLoss, name, value) for name in ("margin", "nu") for value in (-0.1, *NOT_FINITE)),
    *((MarginLoss, "beta", value) for value in NOT_POSITIVE),
    (MarginLoss, "num_classes", 0),
    (HistogramLoss, "bins", 0),
    *((kind, "temperature", value) for kind in (SmoothAPLoss, SupAPLoss) for value in NOT_POSITIVE),
    *((RecallAtKLoss, f"{of}_temperature", value) for of in ("rank", "similarity") for value in NOT_POSITIVE),
    *((RecallAtKLoss, "k", value) for value in (0, -1, 1.5)),
    *((SupAPLoss, name, value) for name in ("linear_from", "slope") for value in (-0.1, *NOT_FINITE)),
    *((RoadmapLoss, "calibration_weight", value) for value in (-0.1, 1.1, math.nan)),
    *((FastAPLoss, "bins", value) for value in (0, 2.5)),
    *((SoftBinAPLoss, "nodes", value) for value in (0, 1)),
    *((BlackboxAPLoss, "interpolation", value) for value in NOT_POSITIVE),
    *((BlackboxAPLoss, "margin", value) for value in NOT_FINITE),
    (RecallAtKLoss, "reduction", "pairs"),
    (SmoothAPLoss, "reduction", "violating"),
    (TripletLoss, "triplets", "hard"),
    (TripletLoss, "reduction", "contributing"),
    (ContrastiveLoss, "reduction", "mean"),
    (MultiSimilarityLoss, "reduction", "pairs"),
    (NTXentLoss, "reduction", "violating"),
    # Center-based losses.
    *((kind, name, value) for kind in CENTER_BASED for name in ("num_classes", "dim") for value in (0, -1, 2.5)),
    *((kind, "scale", value) for kind in (*SCALED, SoftTripleLoss) for value in NOT_POSITIVE),
    *((kind, "label_smoothing", value) for kind in SMOOTHED for value in FRACTIONS),
    *((kind, "sample_rate", value) for kind in SAMPLED for value in (0.0, *FRACTIONS)),
    *((kind, "seed", value) for kind in SAMPLED for value in (-1, 0.5)),
    *((kind, "margin", value) for kind in (CosFaceLoss, ProxyAnchorLoss, SoftTripleLoss) for value in NOT_FINITE),
    *((ArcFaceLoss, "margin", value) for value in (-0.1, 3.2)),
    *((kind, "center_weight", value) for kind in (CenterContrastiveLoss, CenterLoss) for value in (-0.1, *NOT_FINITE)),
    *((ClusterContrastLoss, "momentum", value) for value in FRACTIONS),
    *((ProxyNCAPlusPlusLoss, "temperature", value) for value in NOT_POSITIVE),
    *((ProxyAnchorLoss, "alpha", value) for value in NOT_POSITIVE),
    *((SoftTripleLoss, "gamma", value) for value in NOT_POSITIVE),
    *((SoftTripleLoss, "regularizer", value) for value in (-0.1, *NOT_FINITE)),
    (SoftTripleLoss, "centers_per_class", 0),
    # The contextual loss and its regularizer.
    *((ContextualLoss, "k", value) for value in (1, 0, -4, 2.0, 2.5, True)),
    *((ContextualLoss, "epsilon", value) for value in (-0.1, *NOT_FINITE)),
    *((ContextualLoss, name, value) for name in ("alpha", "temperature") for value in NOT_POSITIVE),
    *((ContextualLoss, "theta", value) for value in ("heaviside", None)),
    *((ContextualLoss, "conjunction", value) for value in ("max", None)),
    *((SimilarityRegularizer, "target", value) for value in NOT_FINITE),
    # Miners, and wrappers of a loss.
    *((MultiSimilarityMiner, "epsilon", value) for value in NOT_FINITE),
    *((HardestMiner, name, value) for name in ("num_positives", "num_negatives") for value in (0, -1, 1.5)),
    (EasyPositiveMiner, "num_positives", 0),
    *((SemiHardMiner, "margin", value) for value in (0.0, math.nan)),
    (DistanceWeightedMiner, "num_samples", 0),
    (DistanceWeightedMiner, "seed", -1),
    *((DistanceWeightedMiner, "cutoff", value) for value in (0.0, 1.5, math.nan)),
    *((CrossBatchMemory, "size", value) for value in (0, -1)),
    *((CrossBatchMemory, "warmup", value) for value in (-1, 0.5)),
    *((SiMix, "virtual_per_class", value) for value in (0, 1.5)),
    *((SiMix, "seed", value) for value in (-1, 1.5)),
]
NEEDED: dict[str, Any] = {
    "loss": ContrastiveLoss(),
    "size": 10,
    "rule": EqualWeights(),
    "losses": [ContrastiveLoss()],
    "weights": [1.0],
    "miners": [HardestMiner()],
    "first": HardestMiner(),
    "second": HardestMiner(),
}


def needed_by(kind: type) -> dict[str, Any]:
    """The arguments without which a class cannot be created."""
    parameters = inspect.signature(kind).parameters
    return {key: NEEDED[key] for key, each in parameters.items() if each.default is each.empty}


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in IMPOSSIBLE}, key=lambda kind: kind.__name__))
def test_impossible_arguments(kind: type) -> None:
    for name, value in [(name, value) for of, name, value in IMPOSSIBLE if of is kind]:
        with pytest.raises(InputError) as error:
            kind(**{**needed_by(kind), name: value})
        message = str(error.value)
        assert message.startswith(f"{kind.__name__}: {name} = {value!r} ")
        assert "must " in message
        assert "\n" not in message


def test_impossible_arguments_of_several_numbers() -> None:
    for k in ([], [1, 2, 0], None, [1, None], True, [2.0]):
        message = f"RecallAtKLoss: k = {k} must be a whole number, at least 1, or several"
        refused_call(f"^{re.escape(message)}$", RecallAtKLoss, k=k)
    refused_call(r"^SupAPLoss: slope = -1 must be at least 0$", RoadmapLoss, slope=-1)
    with pytest.raises(InputError, match=r"^ContrastiveLoss: positive_margin = nan must be a finite number$"):
        RoadmapLoss(positive_margin=math.nan)


def test_a_beta_a_class_needs_labels_that_are_classes() -> None:
    x, loss = torch.randn(3, 4), MarginLoss(num_classes=3)
    refused_call(r"labels from 0 to 3 are not all in 0 \.\.\. 2 \(num_classes = 3\)", loss, x, torch.tensor([0, 1, 3]))
    refused_call(r"labels from -1 to 2", loss, x, torch.tensor([0, -1, 2]))
    refused_call("needs one int label per embedding", loss, x, positive=torch.eye(3, dtype=torch.bool))
    assert loss(x, torch.tensor([0, 1, 2])).isfinite()
    others = PairSource.from_batch(x, torch.tensor([0, 1, 3]))
    refused_call("labels from 0 to 3", loss.anchor_values, others)
    refused_call("must be miners, at least one", SequentialMiner, [SemiHardMiner(), 1])
    alone = PairSource.from_batch(x, torch.tensor([0, 1, 2]), x[:0], torch.arange(0))
    assert loss.anchor_values(alone).tolist() == [0.0] * 3


X = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) // 2
NUMBERS = [10**400, 1e400, math.nan, -1, 0.5, 2.5, 10**30, 1e300, 1e-300]
VALUES = ["x", [1], {}, None, True, torch.ones(1), object, *NUMBERS]
MINERS = [kind for kind in vars(mining).values() if inspect.isclass(kind) and issubclass(kind, Miner)]
OTHERS = [CrossBatchMemory, SiMix, WeightedPairLoss, LossWeights, WeightedSum]
CLASSES: dict[str, type] = KINDS | {kind.__name__: kind for kind in MINERS + OTHERS if not inspect.isabstract(kind)}


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_refused_or_give_a_finite_loss(name: str) -> None:
    kind = CLASSES[name]
    needed = {"num_classes": 4, "dim": DIM} if issubclass(kind, CenterBasedLoss) else needed_by(kind)
    messages = []
    for key in inspect.signature(kind).parameters:
        for value in VALUES:
            try:
                made = kind(**{**needed, key: value})
                result = made(X, Y) if isinstance(made, Loss) else torch.zeros(())
            except InputError as error:
                messages.append(str(error))
            else:
                assert result.isfinite(), (key, value)
    assert all(len(message) < 300 and "\n" not in message for message in messages)
