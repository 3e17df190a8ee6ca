"""What losses refuse: impossible arguments, each in one line with the class, the argument and the value."""

from __future__ import annotations

import math
import re

import pytest
import torch

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
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
    SoftBinAPLoss,
    SupAPLoss,
    SupConLoss,
    TripletLoss,
)
from vicinal.utils.errors import InputError

STEEP = (BinomialDevianceLoss, MultiSimilarityLoss, LiftedStructureStarLoss, BinLiftedLoss)
NOT_POSITIVE = (0, -1.0, math.nan, math.inf)
NOT_FINITE = (math.nan, math.inf)

IMPOSSIBLE: list[tuple[type[Loss], str, object]] = [
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
    (FastAPLoss, "bins", 0),
    (FastAPLoss, "bins", 2.5),
    (SoftBinAPLoss, "nodes", 0),
    (SoftBinAPLoss, "nodes", 1),
    *((BlackboxAPLoss, "interpolation", value) for value in NOT_POSITIVE),
    *((BlackboxAPLoss, "margin", value) for value in NOT_FINITE),
    (RecallAtKLoss, "reduction", "pairs"),
    (SmoothAPLoss, "reduction", "violating"),
    (TripletLoss, "triplets", "hard"),
    (TripletLoss, "reduction", "contributing"),
    (ContrastiveLoss, "reduction", "mean"),
    (MultiSimilarityLoss, "reduction", "pairs"),
    (NTXentLoss, "reduction", "violating"),
]


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in IMPOSSIBLE}, key=lambda kind: kind.__name__))
def test_impossible_arguments(kind: type[Loss]) -> None:
    for name, value in [(name, value) for of, name, value in IMPOSSIBLE if of is kind]:
        with pytest.raises(InputError) as error:
            kind(**{name: value})
        message = str(error.value)
        assert message.startswith(f"{kind.__name__}: {name} = {value!r}")
        assert "\n" not in message


def test_impossible_arguments_of_several_numbers() -> None:
    for k in ([], [1, 2, 0], None, [1, None], True, [2.0]):
        message = f"RecallAtKLoss: k = {k} must be a whole number, at least 1, or several"
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            RecallAtKLoss(k=k)
    with pytest.raises(InputError, match=r"^SupAPLoss: slope = -1 must not be negative$"):
        RoadmapLoss(slope=-1)
    with pytest.raises(InputError, match=r"^ContrastiveLoss: positive_margin = nan must be a finite number$"):
        RoadmapLoss(positive_margin=math.nan)


def test_a_beta_a_class_needs_labels_that_are_classes() -> None:
    x, loss = torch.randn(3, 4), MarginLoss(num_classes=3)
    with pytest.raises(InputError, match=r"labels from 0 to 3 are not all in 0 \.\.\. 2 \(num_classes = 3\)"):
        loss(x, torch.tensor([0, 1, 3]))
    with pytest.raises(InputError, match=r"labels from -1 to 2"):
        loss(x, torch.tensor([0, -1, 2]))
    with pytest.raises(InputError, match="needs one int label per embedding"):
        loss(x, positive=torch.eye(3, dtype=torch.bool))
    assert loss(x, torch.tensor([0, 1, 2])).isfinite()
