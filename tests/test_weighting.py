"""General pair weighting: weights read off losses against the papers' formulas, and losses made of weights."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vicinal.losses
from tests.conftest import ROOT
from tests.losses.batches import nasty_batches
from vicinal.losses import (
    BinLiftedLoss,
    BinomialDevianceLoss,
    BlackboxAPLoss,
    CircleLoss,
    ContextualLoss,
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
    PairLoss,
    RecallAtKLoss,
    RoadmapLoss,
    RowLoss,
    SimilarityRegularizer,
    SmoothAPLoss,
    SoftBinAPLoss,
    SupAPLoss,
    SupConLoss,
    TripletLoss,
    WeightedSum,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner, HardestMiner, Miner, MultiSimilarityMiner, SemiHardMiner
from vicinal.similarity import PairSource
from vicinal.similarity.normalize import normalize
from vicinal.similarity.rows import Rows
from vicinal.training import Recipe
from vicinal.utils.errors import InputError
from vicinal.weighting import (
    EqualWeights,
    LossWeights,
    WeightedPairLoss,
    WeightingRule,
    pair_weights,
    similarity_types,
    similarity_weights,
)

MS_MINER = MultiSimilarityMiner()
BATCHES = nasty_batches()
LABELS = torch.tensor([2, 0, 1, 0, 3, 2, 1, 1, 0, 3, 2, 0, 5])
LOSSES: dict[str, Loss] = {
    "contrastive": ContrastiveLoss(0.3, 0.1),
    "contrastive, Eq. 4": ContrastiveLoss(positive_margin=None, negative_margin=0.1, reduction="sum"),
    "contrastive, pairs": ContrastiveLoss(0.3, 0.1, reduction="pairs"),
    "triplet": TripletLoss(),
    "triplet, violating": TripletLoss(reduction="violating"),
    "triplet, semi-hard": TripletLoss(margin=0.5, triplets="semi-hard"),
    "triplet, soft": TripletLoss(soft=True),
    "triplet, hardest": TripletLoss(miner=HardestMiner()),
    "triplet, distance-weighted": TripletLoss(miner=DistanceWeightedMiner(seed=5)),
    "lifted": LiftedStructureLoss(),
    "lifted star": LiftedStructureStarLoss(),
    "lifted star, mined": LiftedStructureStarLoss(miner=MS_MINER),
    "binomial": BinomialDevianceLoss(beta=10, base=0.3),
    "bin-lifted": BinLiftedLoss(beta=10, base=0.3),
    "N-pairs": NPairsLoss(),
    "NCA": NCALoss(scale=3),
    "histogram": HistogramLoss(bins=20),
    "histogram, mined": HistogramLoss(bins=20, miner=SemiHardMiner(None)),
    "NT-Xent": NTXentLoss(),
    "NT-Xent, anchors": NTXentLoss(reduction="anchors"),
    "SupCon": SupConLoss(temperature=0.3),
    "margin": MarginLoss(),
    "margin, classes": MarginLoss(num_classes=6, nu=0.1, miner=None, reduction="sum"),
    "circle": CircleLoss(scale=5),
    "multi-similarity": MultiSimilarityLoss(base=0.5, beta=10),
    "multi-similarity, contributing": MultiSimilarityLoss(reduction="contributing"),
    "sum": 0.7 * MultiSimilarityLoss(base=0.5) + 0.3 * TripletLoss(miner=DistanceWeightedMiner()),
    "recall@k": RecallAtKLoss(k=[1, 3], similarity_temperature=0.1),
    "smooth AP": SmoothAPLoss(temperature=0.1),
    "SupAP": SupAPLoss(temperature=0.1, linear_from=0.3, slope=5),
    "SupAP, mined": SupAPLoss(miner=MS_MINER),
    "ROADMAP": RoadmapLoss(positive_margin=0.3, negative_margin=0.1),
    "FastAP": FastAPLoss(),
    "SoftBinAP": SoftBinAPLoss(),
    "blackbox AP": BlackboxAPLoss(),
    "own": WeightedPairLoss(LossWeights(NCALoss()), reduction="pairs"),
}

PUSHES_POSITIVES = "SupCon", "recall@k", "smooth AP", "FastAP", "SoftBinAP", "blackbox AP"
"""Losses of which a positive pair may be apart too little: one that is much closer than the anchor's others, or that
stands in their way where positives are ranked among themselves."""


def batch(n: int = 13, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*leaves), leaves, allow_unused=True, materialize_grads=True)


def weighted(weights: Tensor, positive: Tensor, similarity: Tensor) -> Tensor:
    """Eq. (3), F."""
    return (torch.where(positive, -weights, weights) * similarity).sum()


# From a loss to its weights.

NO_ROWS = {"ContextualLoss", "SimilarityRegularizer"}
"""Not made of anchors with positives and negatives: they move pairs against their labels too, or whatever these are."""


OFFERED = {name: value for name in vicinal.losses.__all__ if inspect.isclass(value := getattr(vicinal.losses, name))}
OF_CENTERS = {name for name, loss in OFFERED.items() if issubclass(loss, vicinal.losses.CenterBasedLoss)}
"""They have no pairs of samples."""


def test_every_loss_of_the_library_is_here() -> None:
    names = {type(loss).__name__ for loss in LOSSES.values()}
    abstract = {"Loss", "PairLoss", "RowLoss", "RankingLoss"}
    assert names >= set(OFFERED) - abstract - NO_ROWS - OF_CENTERS


@pytest.mark.parametrize("name", LOSSES)
def test_training_with_the_weights_is_training_with_the_loss(name: str) -> None:
    x, loss = batch(), LOSSES[name]
    weights = pair_weights(loss, PairSource.from_batch(x, LABELS))
    signed = pair_weights(loss, PairSource.from_batch(x, LABELS), signed=True)
    assert torch.equal(signed.abs(), weights)
    assert weights.count_nonzero() > 10
    positive = LABELS[:, None] == LABELS
    # The loss itself comes last, for a random miner draws anew in each call.
    (by_signed,) = gradients(lambda x: (signed * (normalize(x) @ normalize(x).T)).sum(), x)
    (by_weights,) = gradients(lambda x: weighted(weights, positive, normalize(x) @ normalize(x).T), x)
    (own,) = gradients(lambda x: loss(x, LABELS), x)
    assert own.abs().max() > 1e-6
    torch.testing.assert_close(by_signed, own, rtol=1e-9, atol=1e-12)
    if name not in PUSHES_POSITIVES:
        torch.testing.assert_close(by_weights, own, rtol=1e-9, atol=1e-12)


def test_supcon_pushes_a_positive_apart_that_is_much_closer_than_the_others() -> None:
    similarity, positive = torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([[True, True, False]])
    signed = similarity_weights(SupConLoss(), similarity, positive, signed=True)
    assert signed[0, 0] > 0 > signed[0, 1]


def test_a_ranking_pushes_a_positive_apart_that_is_in_the_way_of_another() -> None:
    """More is gained near rank 1 than at rank 2, so the second is to leave room for the first."""
    similarity, positive = torch.tensor([[0.9, 0.88, 0.0]]), torch.tensor([[True, True, False]])
    signed = similarity_weights(RecallAtKLoss(k=1), similarity, positive, signed=True)
    assert signed[0, 1] > 0 > signed[0, 0]


@pytest.mark.parametrize("name", LOSSES)
def test_weights_against_references_and_with_other_pairs(name: str) -> None:
    for case in ("references", "offset", "relation", "masks"):
        if (name, case) != ("margin, classes", "masks"):  # it needs labels
            check_weights_with(name, case)


def check_weights_with(name: str, case: str) -> None:
    x, references, loss = batch(8), batch(11, seed=1), LOSSES[name]
    labels, reference_labels = LABELS[:8], LABELS.roll(3)[:11]
    options: dict[str, object] = {"references": references, "reference_labels": reference_labels}
    if case == "offset":
        references[2:10], reference_labels[2:10], options["offset"] = x, labels, 2
    if case == "relation":
        options["relation"] = lambda a, b: (a[:, None] - b).abs() <= 1
    if case == "masks":
        positive = torch.rand(8, 11, generator=torch.Generator().manual_seed(2)) < 0.3
        negative = ~positive & (torch.rand(8, 11, generator=torch.Generator().manual_seed(3)) < 0.8)
        labels, options = None, {"references": references, "positive": positive, "negative": negative}
    signed = pair_weights(loss, PairSource.from_batch(x, labels, **options), signed=True)
    if case == "offset":
        assert not signed.diagonal(2).any()
    if case == "masks":
        assert not signed[~positive & ~negative].any()
    by_weights = gradients(lambda x, y: (signed * (normalize(x) @ normalize(y).T)).sum(), x, references)
    own = gradients(lambda x, y: loss(x, labels, **{**options, "references": y}), x, references)
    for ours, theirs in zip(by_weights, own, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_looking_changes_nothing(name: str) -> None:
    loss, x = LOSSES[name], batch().requires_grad_()
    loss(x, LABELS)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    state = torch.get_rng_state()
    first = pair_weights(loss, PairSource.from_batch(x, LABELS))
    with torch.no_grad():
        assert torch.equal(pair_weights(loss, PairSource.from_batch(x, LABELS)), first)
    with torch.inference_mode():
        assert torch.equal(pair_weights(loss, PairSource.from_batch(x.detach().clone(), LABELS)), first)
    assert not first.requires_grad
    assert x.grad is None
    assert all(parameter.grad is None and parameter.requires_grad for parameter in loss.parameters())
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_of_a_random_miner_are_those_of_the_next_call() -> None:
    loss, x = TripletLoss(miner=DistanceWeightedMiner(num_samples=1)), batch()
    seen = []
    for _ in range(3):
        seen.append(pair_weights(loss, PairSource.from_batch(x, LABELS), signed=True))
        (by_weights,) = gradients(lambda x, w=seen[-1]: (w * (normalize(x) @ normalize(x).T)).sum(), x)
        torch.testing.assert_close(by_weights, gradients(lambda x: loss(x, LABELS), x)[0])
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "margin, classes"])
def test_weights_are_finite(name: str) -> None:
    for of, data in BATCHES.items():
        for dtype in (torch.float64, torch.bfloat16):
            weights = pair_weights(LOSSES[name], PairSource.from_batch(*data.to(dtype)))
            assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert weights.isfinite().all(), of
            if data.references is None or data.offset is not None:
                assert not weights.diagonal(data.offset or 0).any(), of


def test_autocast_does_not_matter() -> None:
    x = batch().float()
    with torch.autocast("cpu", torch.bfloat16):
        weights = pair_weights(NCALoss(), PairSource.from_batch(x, LABELS))
    torch.testing.assert_close(weights, pair_weights(NCALoss(), PairSource.from_batch(x, LABELS)), rtol=0, atol=0)


def test_sizes_of_nothing() -> None:
    assert pair_weights(NCALoss(), PairSource.from_batch(batch(0), LABELS[:0])).shape == (0, 0)
    weights = pair_weights(NCALoss(), PairSource.from_batch(batch(2), LABELS[:2], batch(0), LABELS[:0]))
    assert weights.shape == (2, 0)


def test_a_similarity_matrix_is_enough() -> None:
    x, y = batch(8), batch(11, seed=1)
    positive = LABELS[:8, None] == LABELS[:11]
    similarity = normalize(x) @ normalize(y).T
    for name, loss in LOSSES.items():
        if name != "margin, classes":
            expected = pair_weights(loss, PairSource.from_batch(x, references=y, positive=positive), signed=True)
            ours = similarity_weights(loss, similarity, positive, dim=4, signed=True)
            torch.testing.assert_close(ours, expected, msg=name)
            assert torch.equal(similarity_weights(loss, similarity, positive, dim=4), ours.abs())
    few = similarity_weights(NCALoss(), similarity, positive, negative=~positive & (similarity > 0))
    assert torch.equal(few > 0, positive | (similarity > 0) & positive.any(1, keepdim=True))
    assert similarity_weights(NCALoss(), similarity.half(), positive).dtype == torch.float32


def test_what_has_no_weights_is_refused() -> None:
    x = batch()
    for loss in (CrossBatchMemory(NCALoss(), 10), NCALoss() + 2 * CrossBatchMemory(NCALoss(), 10)):
        with pytest.raises(InputError, match="CrossBatchMemory has no pair weights of its own"):
            pair_weights(loss, PairSource.from_batch(x, LABELS))
    with pytest.raises(InputError, match=r"similarity must be float \[n, c\], not torch.int64 \[2, 2\]"):
        similarity_weights(NCALoss(), torch.eye(2).long(), torch.eye(2).bool())
    with pytest.raises(InputError, match=r"positive must be bool \[2, 2\]"):
        similarity_weights(NCALoss(), torch.eye(2), torch.eye(3).bool())
    with pytest.raises(InputError, match="labels must be int"):
        pair_weights(NCALoss(), PairSource.from_batch(x, LABELS[:3]))
    with pytest.raises(InputError, match="num_negatives = 0 must be at least 1"):
        similarity_types(NCALoss(), num_negatives=0)


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


CLOSED_FORMS: dict[str, tuple[Loss, Callable[[Pair], float], Callable[[Pair], float]]] = {
    # name: loss, weight of a positive, weight of a negative
    "Eq. 4, contrastive": (
        ContrastiveLoss(positive_margin=None, negative_margin=0.2, reduction="sum"),
        lambda pair: 1.0,
        lambda pair: float(pair.s > 0.2),
    ),
    "Eq. 5, triplet": (
        TripletLoss(margin=0.1, reduction="sum"),
        lambda pair: sum(s + 0.1 > pair.s for s in pair.negatives),
        lambda pair: sum(pair.s + 0.1 > s for s in pair.positives),
    ),
    "Eq. 7 and 8, lifted structure": (
        LiftedStructureLoss(),
        lambda pair: bool(pair.negatives) / exp_sum(pair.positives, -1, pair.s),
        lambda pair: bool(pair.positives) / exp_sum(pair.negatives, 1, pair.s),
    ),
    "Eq. 10, binomial deviance": (
        BinomialDevianceLoss(alpha=2, beta=10, base=0.5),
        lambda pair: 2 / len(pair.positives) * math.exp(2 * (0.5 - pair.s)) / (1 + math.exp(2 * (0.5 - pair.s))),
        lambda pair: 10 / len(pair.negatives) * math.exp(10 * (pair.s - 0.5)) / (1 + math.exp(10 * (pair.s - 0.5))),
    ),
    "Eq. 13 and 14, multi-similarity weighting": (
        MultiSimilarityLoss(alpha=2, beta=50, base=1, miner=None, reduction="sum"),
        lambda pair: 1 / (math.exp(-2 * (1 - pair.s)) + exp_sum(pair.positives, -2, pair.s)),
        lambda pair: 1 / (math.exp(50 * (1 - pair.s)) + exp_sum(pair.negatives, 50, pair.s)),
    ),
    "Eq. 11 to 14, multi-similarity": (
        MultiSimilarityLoss(alpha=2, beta=10, base=0.5, reduction="sum"),
        lambda pair: sum(1 / (math.exp(-2 * (0.5 - p.s)) + exp_sum(p.positives, -2, p.s)) for p in mined(pair, True)),
        lambda pair: sum(1 / (math.exp(10 * (0.5 - p.s)) + exp_sum(p.negatives, 10, p.s)) for p in mined(pair, False)),
    ),
    "Eq. 16, LiftedStruct*": (
        LiftedStructureStarLoss(alpha=2, beta=50, reduction="sum"),
        lambda pair: 1 / exp_sum(pair.positives, -2, pair.s),
        lambda pair: 1 / exp_sum(pair.negatives, 50, pair.s),
    ),
    "supplement, Eq. 2, NCA": (
        NCALoss(),
        lambda pair: (
            1 / exp_sum(pair.positives, 1, pair.s) - 1 / exp_sum([*pair.positives, *pair.negatives], 1, pair.s)
        ),
        lambda pair: bool(pair.positives) / exp_sum([*pair.positives, *pair.negatives], 1, pair.s),
    ),
    "supplement, Eq. 10, BinLifted": (
        BinLiftedLoss(alpha=2, beta=10, base=0.5, reduction="sum"),
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
    weights = pair_weights(HistogramLoss(bins=bins), PairSource.from_batch(x, LABELS))
    for i in range(13):
        for j in range(13):
            p = math.floor((s[i, j].item() + 1) / delta)
            expected = 0.0
            if positive[i, j]:
                expected = of_negatives[p] / (delta * int(positive.sum()))
            elif negative[i, j]:
                expected = of_positives[p + 1] / (delta * int(negative.sum()))
            assert weights[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-15), (i, j)


# Tables 1 and 2.

TABLE_1: list[tuple[str, Loss, str, int]] = [
    # name, loss, similarities that the weight of a negative pair depends on, positives of the anchor
    ("Contrastive", ContrastiveLoss(positive_margin=None, reduction="sum"), "S", 4),
    ("Binomial", BinomialDevianceLoss(), "S", 4),
    ("Triplet", TripletLoss(reduction="sum"), "P", 4),
    ("Histogram", HistogramLoss(), "P", 4),
    # The supplement reads it as the lifted structure loss with one positive. Sohn's own formula, the next, is
    # log(1 + sum_N exp(S_n - S_p)): its weights also sink as the positive comes closer.
    ("N-pairs", LiftedStructureLoss(), "N", 1),
    ("N-pairs as Sohn has it", NPairsLoss(), "PN", 1),
    ("Lifted Structure", LiftedStructureLoss(), "N", 4),
    ("BinLifted", BinLiftedLoss(), "SN", 4),
    ("NCA", NCALoss(), "PN", 4),
    ("MS", MultiSimilarityLoss(), "SPN", 4),
]
TABLE_2: list[tuple[str, Loss, str]] = [
    ("Binomial", BinomialDevianceLoss(), "S"),
    ("LiftedStruct*", LiftedStructureStarLoss(), "N"),
    ("MS mining", WeightedPairLoss(EqualWeights(), MS_MINER, reduction="anchors"), "P"),
    ("BinLifted", BinLiftedLoss(), "SN"),
    ("MS weighting", MultiSimilarityLoss(miner=None), "SN"),
    # SP in the paper. Eq. (10) divides by the number of pairs; of mined pairs it depends on where the negatives are.
    ("Binomial_m", BinomialDevianceLoss(miner=MS_MINER), "SPN"),
    ("LiftedStruct*_m", LiftedStructureStarLoss(miner=MS_MINER), "PN"),
    ("MS", MultiSimilarityLoss(), "SPN"),
]


@pytest.mark.parametrize(("name", "loss", "expected", "positives"), TABLE_1, ids=[row[0] for row in TABLE_1])
def test_table_1(name: str, loss: Loss, expected: str, positives: int) -> None:
    assert similarity_types(loss, positives) == expected


@pytest.mark.parametrize(("name", "loss", "expected"), TABLE_2, ids=[row[0] for row in TABLE_2])
def test_table_2(name: str, loss: Loss, expected: str) -> None:
    assert similarity_types(loss) == expected


@pytest.mark.slow
def test_the_table_in_the_documents() -> None:
    text = (ROOT / "docs" / "guides" / "losses.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([a-z]+|-) \| ([SPN]+) \|$", text, re.MULTILINE)
    abstract = {"Loss", "PairLoss", "RowLoss", "RankingLoss", "WeightedSum"}
    assert {name for name, _, _ in rows} == set(OFFERED) - abstract - {"ContextualLoss"} - OF_CENTERS
    for name, reduction, letters in rows:
        loss = getattr(vicinal.losses, name)()
        assert (name, reduction, letters) == (name, getattr(loss, "reduction", "-"), similarity_types(loss))


def test_nodes_that_a_shift_meets_again_hide_nothing() -> None:
    """Similarities that move together by whole bins are shared by nodes as before."""
    assert similarity_types(SoftBinAPLoss(nodes=21)) == similarity_types(FastAPLoss(bins=20)) == "PN"


# From weights to a loss.

ROW_LOSSES: list[Callable[..., RowLoss]] = [
    lambda **options: ContrastiveLoss(0.3, 0.1, **options),
    TripletLoss,
    LiftedStructureLoss,
    LiftedStructureStarLoss,
    lambda **options: BinomialDevianceLoss(base=0.5, **options),
    BinLiftedLoss,
    NPairsLoss,
    NCALoss,
    NTXentLoss,
    SupConLoss,
    lambda **options: MarginLoss(**{"miner": None, **options}),
    lambda **options: CircleLoss(scale=5, **options),
    lambda **options: MultiSimilarityLoss(base=0.5, **{"miner": None, **options}),
    RecallAtKLoss,
    SmoothAPLoss,
    SupAPLoss,
    FastAPLoss,
    SoftBinAPLoss,
    BlackboxAPLoss,
]

NOT_COMPILED = TripletLoss, RecallAtKLoss, SmoothAPLoss, SupAPLoss
"""Whose steps are operators of their own, which no compiled function can differentiate within itself."""


@pytest.mark.parametrize("of", ROW_LOSSES, ids=lambda of: type(of()).__name__)
def test_the_rule_of_a_loss_trains_as_the_loss(of: Callable[..., RowLoss]) -> None:
    x, y = batch(), torch.cat([batch(), batch(4, seed=1)])
    for tile_rows, reduction, miner in itertools.product((None, 5), ("sum", "anchors"), (None, MS_MINER)):
        loss = of(reduction=reduction, miner=miner)
        made = [
            WeightedPairLoss(LossWeights(loss), reduction=reduction, tile_rows=tile_rows),
            WeightedPairLoss(LossWeights(of(reduction=reduction, miner=None)), miner, reduction, tile_rows),
        ]
        for ours in made:
            expected = gradients(lambda x: loss(x, LABELS), x)  # noqa: B023
            torch.testing.assert_close(gradients(lambda x: ours(x, LABELS), x), expected)  # noqa: B023
            arguments = LABELS, y, torch.cat([LABELS, LABELS[:4]]), 0
            expected = gradients(lambda x, y: loss(x, arguments[0], y, *arguments[2:]), x, y)  # noqa: B023
            ours_of = gradients(lambda x, y: ours(x, arguments[0], y, *arguments[2:]), x, y)  # noqa: B023
            torch.testing.assert_close(ours_of, expected)


def by_hand(x: Tensor, rule: Callable[[float, bool], float]) -> tuple[float, int, int]:
    """F of a rule of a pair's similarity and kind, the number of pairs, and that of anchors with a pair."""
    s = (normalize(x) @ normalize(x).T).tolist()
    total, pairs, anchors = 0.0, 0, set()
    for i in range(len(x)):
        for j in range(len(x)):
            same = bool(LABELS[i] == LABELS[j])
            if i != j and (s[i][j] > 0.5 or same):
                total += rule(s[i][j], same) * s[i][j] * (-1 if same else 1)
                pairs, anchors = pairs + 1, anchors | {i}
    return total, pairs, len(anchors)


class CloseNegatives(Miner):
    def __call__(self, rows: Rows) -> Rows:
        return rows.keep(negatives=rows.negatives > 0.5)


class Careless(WeightingRule):
    """Its weights where there is no pair are infinite or NaN."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return rows.positives - rows.positives + 3 - rows.positives, rows.negatives * rows.negatives


@pytest.mark.parametrize("tile_rows", [None, 4])
@pytest.mark.parametrize(
    ("rule", "pair"),
    [(EqualWeights(), lambda s, same: 1.0), (Careless(), lambda s, same: 3 - s if same else s * s)],
)
def test_value_and_reductions(rule: WeightingRule, pair: Callable[[float, bool], float], tile_rows: int | None) -> None:
    x = batch(d=12)
    total, pairs, anchors = by_hand(x, pair)
    assert anchors < len(x)
    for reduction, divisor in (("sum", 1), ("anchors", len(x)), ("contributing", anchors), ("pairs", pairs)):
        loss = WeightedPairLoss(rule, CloseNegatives(), reduction, tile_rows)
        assert loss(x, LABELS).item() == pytest.approx(total / divisor)
        (gradient,) = gradients(lambda x: loss(x, LABELS), x)  # noqa: B023
        assert gradient.isfinite().all()


def test_weights_are_held_constant() -> None:
    x = batch()
    signed = pair_weights(WeightedPairLoss(Careless()), PairSource.from_batch(x, LABELS), signed=True)
    s, positive = normalize(x) @ normalize(x).T, LABELS[:, None] == LABELS
    expected = torch.where(positive, s - 3, s * s).fill_diagonal_(0)
    torch.testing.assert_close(signed, expected)


class PushOnly(RowLoss):
    def row_values(self, rows: Rows) -> Tensor:
        return rows.negatives.exp().sum(dim=1)


def test_the_rule_of_a_loss_that_knows_one_kind_of_pairs() -> None:
    ours, loss = WeightedPairLoss(LossWeights(PushOnly()), reduction="anchors"), PushOnly()
    expected = gradients(lambda x: loss(x, LABELS), batch())
    torch.testing.assert_close(gradients(lambda x: ours(x, LABELS), batch()), expected)


def test_a_learned_boundary_is_left_alone() -> None:
    loss = WeightedPairLoss(LossWeights(MarginLoss(miner=None)))
    loss(batch().requires_grad_(), LABELS).backward()
    assert [(p.requires_grad, p.grad) for p in loss.parameters()] == [(False, None)]  # no optimizer decays it
    assert "rule.loss.beta" in loss.state_dict()  # so that it moves to the device of the rest


@pytest.mark.parametrize("of", BATCHES)
def test_nasty_batches(of: str) -> None:
    x, *others = BATCHES[of]
    for rule in (EqualWeights(), LossWeights(MultiSimilarityLoss()), Careless()):
        for reduction in WeightedPairLoss.reductions:
            loss = WeightedPairLoss(rule, MS_MINER, reduction)
            assert loss(x, *others).isfinite()
            assert gradients(lambda x: loss(x, *others), x)[0].isfinite().all()  # noqa: B023
    with torch.no_grad():
        assert not WeightedPairLoss(LossWeights(NCALoss()))(x, *others).requires_grad


@pytest.mark.parametrize(
    "rule",
    [
        Careless(),
        LossWeights(MultiSimilarityLoss()),
        pytest.param(EqualWeights(), marks=pytest.mark.slow),
        *(pytest.param(LossWeights(of()), marks=pytest.mark.slow) for of in ROW_LOSSES if of not in NOT_COMPILED),
    ],
    ids=lambda rule: type(getattr(rule, "loss", rule)).__name__,
)
def test_compiles_whole(rule: WeightingRule) -> None:
    torch.compiler.reset()
    x = batch().float()
    loss = WeightedPairLoss(rule, MS_MINER)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, LABELS), loss(x, LABELS))
    expected = gradients(lambda x: loss(x, LABELS), x)
    torch.testing.assert_close(gradients(lambda x: compiled(x, LABELS), x), expected)


def test_composes_and_scales_with_other_losses() -> None:
    x, loss = batch(), WeightedPairLoss(EqualWeights())
    both = WeightedSum([NCALoss(), loss], [1.0, 0.5])
    torch.testing.assert_close(both(x, LABELS), NCALoss()(x, LABELS) + 0.5 * loss(x, LABELS))


def test_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "loss:\n  class_path: vicinal.weighting.WeightedPairLoss\n  init_args:\n    reduction: anchors\n"
        "    miner: {class_path: MultiSimilarityMiner, init_args: {epsilon: 0.2}}\n"
        "    rule:\n      class_path: LossWeights\n      init_args:\n"
        "        loss: {class_path: BinomialDevianceLoss, init_args: {beta: 40}}\n"
    )
    recipe = Recipe.load(path)
    loss = recipe.create_loss()
    assert isinstance(loss, WeightedPairLoss)
    assert isinstance(loss.rule, LossWeights)
    assert (loss.rule.loss.beta, loss.miner, loss.reduction) == (40, MultiSimilarityMiner(0.2), "anchors")
    recipe.save(tmp_path / "resolved.yaml")
    assert Recipe.load(tmp_path / "resolved.yaml").config == recipe.config
    path.write_text("loss: {class_path: vicinal.weighting.WeightedPairLoss, init_args: {rule: EqualWeights}}\n")
    loss = Recipe.load(path).create_loss()
    assert (loss.rule, loss.miner, loss.reduction) == (EqualWeights(), None, "sum")
    guide = (ROOT / "docs" / "guides" / "losses.md").read_text()
    (shown,) = re.findall(r"^```yaml\n([^`]*WeightedPairLoss[^`]*)^```", guide, re.MULTILINE)
    path.write_text(shown)
    assert isinstance(Recipe.load(path).create_loss().rule.loss, BinomialDevianceLoss)


def test_impossible_rules() -> None:
    class Swapped(WeightingRule):
        def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
            return torch.ones_like(rows.negatives), torch.ones_like(rows.positives)

    with pytest.raises(InputError, match=r"Swapped: weights of positives are \[13, 13\] and must be \[13, 4\]"):
        WeightedPairLoss(Swapped())(batch(), LABELS)
    with pytest.raises(InputError, match="MarginLoss has a random miner"):
        LossWeights(MarginLoss())
    with pytest.raises(InputError, match="HistogramLoss is no RowLoss"):
        LossWeights(HistogramLoss())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="reduction = 'violating'"):
        WeightedPairLoss(EqualWeights(), reduction="violating")
    assert isinstance(WeightedPairLoss(EqualWeights()), PairLoss)


def test_weights_of_a_loss_of_neighborhoods() -> None:
    """By the similarities, as autograd has it, an anchor's own left out, some against the label."""
    x = batch().detach().requires_grad_()
    for loss in (ContextualLoss(k=3), SimilarityRegularizer(), 0.8 * ContextualLoss(k=3) + SimilarityRegularizer()):
        weights = pair_weights(loss, PairSource.from_batch(x, LABELS), signed=True)
        assert weights.diagonal().count_nonzero() == 0
        unit = torch.nn.functional.normalize(x)
        (by_weights,) = torch.autograd.grad((weights * (unit @ unit.T)).sum(), x)
        (by_loss,) = torch.autograd.grad(loss(x, LABELS), x)
        torch.testing.assert_close(by_weights, by_loss)
    signs = pair_weights(ContextualLoss(k=3), PairSource.from_batch(x, LABELS), signed=True).sign()
    assert (signs == -1)[LABELS[:, None] != LABELS].any()
    with pytest.raises(InputError, match="give a batch without references"):
        pair_weights(ContextualLoss(k=3), PairSource.from_batch(x, LABELS, x, LABELS))
