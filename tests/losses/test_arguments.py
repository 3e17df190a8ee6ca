"""Arguments that losses and miners refuse, each in one line with the class, the argument and the value."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from typing import Any

import pytest
import torch

from tests.losses.every_loss import DIM, KINDS
from tests.refusals import refused
from vicinal import losses, mining
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.utils.errors import InputError
from vicinal.weighting import EqualWeights, LossWeights, WeightedPairLoss

NOT_POSITIVE = (0, -1.0, math.nan, math.inf)
NOT_FINITE = (math.nan, math.inf)
NEGATIVE = (-0.1, *NOT_FINITE)
FRACTIONS = (-0.1, 1.1, math.nan)

STEEP = "BinomialDevianceLoss MultiSimilarityLoss LiftedStructureStarLoss BinLiftedLoss"
CENTER_BASED = " ".join(name for name, kind in KINDS.items() if issubclass(kind, losses.CenterBasedLoss))
SCALED = "NormSoftmaxLoss CosFaceLoss ArcFaceLoss CenterContrastiveLoss ClusterContrastLoss ProxyNCALoss SoftTripleLoss"
SMOOTHED = "NormSoftmaxLoss ArcFaceLoss CenterContrastiveLoss ClusterContrastLoss CrossEntropyLoss CenterLoss"
SAMPLED = "NormSoftmaxLoss CosFaceLoss ArcFaceLoss CenterContrastiveLoss ProxyNCALoss ProxyNCAPlusPlusLoss"
IMPOSSIBLE: list[tuple[str, str, tuple[object, ...]]] = [
    # Pair losses: classes, arguments, values.
    (STEEP, "alpha beta", NOT_POSITIVE),
    ("BinomialDevianceLoss MultiSimilarityLoss BinLiftedLoss", "base", NOT_FINITE),
    ("CircleLoss NPairsLoss NCALoss", "scale", NOT_POSITIVE),
    ("NTXentLoss SupConLoss SmoothAPLoss SupAPLoss", "temperature", NOT_POSITIVE),
    ("CircleLoss LiftedStructureLoss TripletLoss BlackboxAPLoss", "margin", NOT_FINITE),
    ("ContrastiveLoss", "positive_margin negative_margin", NOT_FINITE),
    ("MarginLoss", "margin nu", NEGATIVE),
    ("MarginLoss", "beta", NOT_POSITIVE),
    ("MarginLoss", "num_classes", (0,)),
    ("HistogramLoss FastAPLoss", "bins", (0, 2.5)),
    ("RecallAtKLoss", "rank_temperature similarity_temperature", NOT_POSITIVE),
    ("RecallAtKLoss", "k", (0, -1, 1.5)),
    ("SupAPLoss", "linear_from slope", NEGATIVE),
    ("RoadmapLoss", "calibration_weight", FRACTIONS),
    ("SoftBinAPLoss", "nodes", (0, 1)),
    ("BlackboxAPLoss", "interpolation", NOT_POSITIVE),
    ("RecallAtKLoss MultiSimilarityLoss", "reduction", ("pairs",)),
    ("SmoothAPLoss NTXentLoss", "reduction", ("violating",)),
    ("TripletLoss", "reduction", ("contributing",)),
    ("TripletLoss", "triplets", ("hard",)),
    ("ContrastiveLoss", "reduction", ("mean",)),
    # Center-based losses.
    (CENTER_BASED, "num_classes dim", (0, -1, 2.5)),
    (SCALED, "scale", NOT_POSITIVE),
    (SMOOTHED, "label_smoothing", FRACTIONS),
    (SAMPLED, "sample_rate", (0.0, *FRACTIONS)),
    (SAMPLED, "seed", (-1, 0.5)),
    ("CosFaceLoss ProxyAnchorLoss SoftTripleLoss", "margin", NOT_FINITE),
    ("ArcFaceLoss", "margin", (-0.1, 3.2)),
    ("CenterContrastiveLoss CenterLoss", "center_weight", NEGATIVE),
    ("ClusterContrastLoss", "momentum", FRACTIONS),
    ("ProxyNCAPlusPlusLoss", "temperature", NOT_POSITIVE),
    ("ProxyAnchorLoss", "alpha", NOT_POSITIVE),
    ("SoftTripleLoss", "gamma", NOT_POSITIVE),
    ("SoftTripleLoss", "regularizer", NEGATIVE),
    ("SoftTripleLoss", "centers_per_class", (0,)),
    # The contextual loss and its regularizer.
    ("ContextualLoss", "k", (1, 0, -4, 2.0, 2.5, True)),
    ("ContextualLoss", "epsilon", NEGATIVE),
    ("ContextualLoss", "alpha temperature", NOT_POSITIVE),
    ("ContextualLoss", "theta", ("heaviside", None)),
    ("ContextualLoss", "conjunction", ("max", None)),
    ("SimilarityRegularizer", "target", NOT_FINITE),
    # Miners, and wrappers of a loss.
    ("MultiSimilarityMiner", "epsilon", NOT_FINITE),
    ("HardestMiner", "num_positives num_negatives", (0, -1, 1.5)),
    ("EasyPositiveMiner", "num_positives", (0,)),
    ("SemiHardMiner", "margin", (0.0, math.nan)),
    ("DistanceWeightedMiner", "num_samples", (0,)),
    ("DistanceWeightedMiner", "seed", (-1,)),
    ("DistanceWeightedMiner", "cutoff", (0.0, 1.5, math.nan)),
    ("CrossBatchMemory", "size", (0, -1)),
    ("CrossBatchMemory", "warmup", (-1,)),
    ("SiMix", "virtual_per_class", (0, 1.5)),
    ("SiMix", "seed", (-1, 1.5)),
]
MINERS = [kind for kind in vars(mining).values() if inspect.isclass(kind) and issubclass(kind, mining.Miner)]
OTHERS = [CrossBatchMemory, SiMix, WeightedPairLoss, LossWeights, losses.WeightedSum]
CLASSES: dict[str, type] = KINDS | {kind.__name__: kind for kind in MINERS + OTHERS if not inspect.isabstract(kind)}
MINER = mining.HardestMiner()
NEEDED: dict[str, Any] = {
    **{"loss": losses.ContrastiveLoss(), "losses": [losses.ContrastiveLoss()], "weights": [1.0], "size": 10},
    **{"rule": EqualWeights(), "miners": [MINER], "first": MINER, "second": MINER},
}


def needed_by(kind: type) -> dict[str, Any]:
    """The arguments without which a class cannot be created."""
    parameters = inspect.signature(kind).parameters
    return {key: NEEDED[key] for key, each in parameters.items() if each.default is each.empty}


@pytest.mark.parametrize(("names", "arguments", "values"), IMPOSSIBLE)
def test_impossible_arguments(names: str, arguments: str, values: tuple[object, ...]) -> None:
    for name, argument, value in itertools.product(names.split(), arguments.split(), values):
        with pytest.raises(InputError) as error:
            CLASSES[name](**{**needed_by(CLASSES[name]), argument: value})
        message = str(error.value)
        assert message.startswith(f"{name}: {argument} = {value!r} ")
        assert "must " in message
        assert "\n" not in message


def test_impossible_arguments_of_several_numbers() -> None:
    for k in ([], [1, 2, 0], None, [1, None], True, [2.0]):
        message = f"RecallAtKLoss: k = {k} must be a whole number, at least 1, or several"
        refused(f"^{re.escape(message)}$", losses.RecallAtKLoss, k=k)
    refused(r"^SupAPLoss: slope = -1 must be at least 0$", losses.RoadmapLoss, slope=-1)
    refused(r"^SupAPLoss: slope = nan must be at least 0 and finite$", losses.RoadmapLoss, slope=math.nan)
    with pytest.raises(InputError, match=r"^ContrastiveLoss: positive_margin = nan must be a finite number$"):
        losses.RoadmapLoss(positive_margin=math.nan)


def test_a_beta_a_class_needs_labels_that_are_classes() -> None:
    x, loss = torch.randn(3, 4), losses.MarginLoss(num_classes=3)
    with pytest.raises(InputError, match=r"labels from 0 to 3 are not all in 0 \.\.\. 2 \(num_classes = 3\)"):
        loss(x, torch.tensor([0, 1, 3]))
    refused(r"labels from -1 to 2", lambda: loss(x, torch.tensor([0, -1, 2])))
    refused("needs one int label per embedding", lambda: loss(x, positive=torch.eye(3, dtype=torch.bool)))
    assert loss(x, torch.tensor([0, 1, 2])).isfinite()


X = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) // 2
NUMBERS = [10**400, 1e400, math.nan, -1, 0.5, 2.5, 10**30, 1e300, 1e-300]
VALUES = ["x", [1], {}, None, True, torch.ones(1), object, *NUMBERS]


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_refused_or_give_a_finite_loss(name: str) -> None:
    kind = CLASSES[name]
    needed = {"num_classes": 4, "dim": DIM} if issubclass(kind, losses.CenterBasedLoss) else needed_by(kind)
    messages = []
    for key in inspect.signature(kind).parameters:
        for value in VALUES:
            try:
                made = kind(**{**needed, key: value})
                result = made(X, Y) if isinstance(made, losses.Loss) else torch.zeros(())
            except InputError as error:
                messages.append(str(error))
            else:
                assert result.isfinite(), (key, value)
    assert all(len(message) < 300 and "\n" not in message for message in messages)
