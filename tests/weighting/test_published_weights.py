"""The weights that are read off losses against the formulas of the paper and its supplement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.weighting.cases import LABELS, batch
from vicinal import losses
from vicinal.similarity import PairSource, normalize
from vicinal.weighting import pair_weights

# The papers' formulas of the weights, each written for one pair.


@dataclass
class Pair:
    """Pair i, j of a batch: its similarity, and those of all the anchor's positives and negatives, itself included."""

    s: float
    positives: list[float]
    negatives: list[float]


def exp_sum(values: list[float], scale: float, base: float = 0.0) -> float:
    return sum(math.exp(scale * (value - base)) for value in values)


def mined(pair: Pair, is_positive: bool) -> list[Pair]:
    """The pair among those chosen by Eq. (11) and (12), if it is chosen."""
    easiest = min(pair.positives, default=math.inf) - 0.1
    hardest = max(pair.negatives, default=-math.inf) + 0.1
    positives, negatives = [s for s in pair.positives if s < hardest], [s for s in pair.negatives if s > easiest]
    chosen = pair.s in (positives if is_positive else negatives)
    return [Pair(pair.s, positives, negatives)] if chosen else []


CLOSED_FORMS: dict[str, tuple[losses.Loss, Callable[[Pair], float], Callable[[Pair], float]]] = {
    # name: loss, weight of a positive, weight of a negative
    "Eq. 4, contrastive": (
        losses.ContrastiveLoss(positive_margin=None, negative_margin=0.2, reduction="sum"),
        lambda pair: 1.0,
        lambda pair: float(pair.s > 0.2),
    ),
    "Eq. 5, triplet": (
        losses.TripletLoss(margin=0.1, reduction="sum"),
        lambda pair: sum(s + 0.1 > pair.s for s in pair.negatives),
        lambda pair: sum(pair.s + 0.1 > s for s in pair.positives),
    ),
    "Eq. 7 and 8, lifted structure": (
        losses.LiftedStructureLoss(),
        lambda pair: bool(pair.negatives) / exp_sum(pair.positives, -1, pair.s),
        lambda pair: bool(pair.positives) / exp_sum(pair.negatives, 1, pair.s),
    ),
    "Eq. 10, binomial deviance": (
        losses.BinomialDevianceLoss(alpha=2, beta=10, base=0.5),
        lambda pair: 2 / len(pair.positives) * math.exp(2 * (0.5 - pair.s)) / (1 + math.exp(2 * (0.5 - pair.s))),
        lambda pair: 10 / len(pair.negatives) * math.exp(10 * (pair.s - 0.5)) / (1 + math.exp(10 * (pair.s - 0.5))),
    ),
    "Eq. 13 and 14, multi-similarity weighting": (
        losses.MultiSimilarityLoss(alpha=2, beta=50, base=1, miner=None, reduction="sum"),
        lambda pair: 1 / (math.exp(-2 * (1 - pair.s)) + exp_sum(pair.positives, -2, pair.s)),
        lambda pair: 1 / (math.exp(50 * (1 - pair.s)) + exp_sum(pair.negatives, 50, pair.s)),
    ),
    "Eq. 11 to 14, multi-similarity": (
        losses.MultiSimilarityLoss(alpha=2, beta=10, base=0.5, reduction="sum"),
        lambda pair: sum(1 / (math.exp(-2 * (0.5 - p.s)) + exp_sum(p.positives, -2, p.s)) for p in mined(pair, True)),
        lambda pair: sum(1 / (math.exp(10 * (0.5 - p.s)) + exp_sum(p.negatives, 10, p.s)) for p in mined(pair, False)),
    ),
    "Eq. 16, LiftedStruct*": (
        losses.LiftedStructureStarLoss(alpha=2, beta=50, reduction="sum"),
        lambda pair: 1 / exp_sum(pair.positives, -2, pair.s),
        lambda pair: 1 / exp_sum(pair.negatives, 50, pair.s),
    ),
    "supplement, Eq. 2, NCA": (
        losses.NCALoss(),
        lambda pair: (
            1 / exp_sum(pair.positives, 1, pair.s) - 1 / exp_sum([*pair.positives, *pair.negatives], 1, pair.s)
        ),
        lambda pair: bool(pair.positives) / exp_sum([*pair.positives, *pair.negatives], 1, pair.s),
    ),
    "supplement, Eq. 10, BinLifted": (
        losses.BinLiftedLoss(alpha=2, beta=10, base=0.5, reduction="sum"),
        lambda pair: (1 / (1 + math.exp(2 * (pair.s - 0.5))) + 1 / exp_sum(pair.positives, -2, pair.s)) / 2,
        lambda pair: (
            (
                math.exp(10 * (pair.s - 0.5)) / (1 + math.exp(10 * (pair.s - 0.5)))
                + math.exp(10 * pair.s) / exp_sum(pair.negatives, 10)
            )
            / 2
        ),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms(name: str) -> None:
    loss, of_positive, of_negative = CLOSED_FORMS[name]
    x = batch()
    weights, s = pair_weights(loss, PairSource.from_batch(x, LABELS)), (normalize(x) @ normalize(x).T).tolist()
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        positives = [s[i][j] for j in others if LABELS[j] == LABELS[i]]
        negatives = [s[i][j] for j in others if LABELS[j] != LABELS[i]]
        for j in others:
            formula = of_positive if LABELS[j] == LABELS[i] else of_negative
            expected = formula(Pair(s[i][j], positives, negatives))
            assert weights[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-14), (i, j)


def test_closed_form_of_the_histogram_loss() -> None:
    """Supplement, Eq. (9): a positive of the bin [t_p, t_p+1] weighs h-_p / (Delta |S+|), a negative of that bin
    h+_p+1 / (Delta |S-|), with the histograms of Eq. (4) and (5)."""
    bins = 10
    delta = 2 / bins
    x = batch()
    s = normalize(x) @ normalize(x).T
    positive = (LABELS[:, None] == LABELS) & ~torch.eye(13).bool()
    negative = LABELS[:, None] != LABELS

    def histogram(values: list[float]) -> list[float]:
        nodes = [r * delta - 1 for r in range(bins + 1)]
        return [sum(max(0, 1 - abs(value - node) / delta) for value in values) / len(values) for node in nodes]

    of_positives, of_negatives = histogram(s[positive].tolist()), histogram(s[negative].tolist())
    weights = pair_weights(losses.HistogramLoss(bins=bins), PairSource.from_batch(x, LABELS))
    for i in range(13):
        for j in range(13):
            p = math.floor((s[i, j].item() + 1) / delta)
            expected = 0.0
            if positive[i, j]:
                expected = of_negatives[p] / (delta * int(positive.sum()))
            elif negative[i, j]:
                expected = of_positives[p + 1] / (delta * int(negative.sum()))
            assert weights[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-15), (i, j)
