"""Value and gradient beside pytorch-metric-learning 2.9: equal where its formula is ours, explained where it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as peers
from torch import Tensor

from tests.losses.batches import Batch, realistic_batch
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal.losses import (
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    HistogramLoss,
    LiftedStructureLoss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    SmoothAPLoss,
    SupConLoss,
    TripletLoss,
)
from vicinal.mining import HardestMiner

COSINE, EUCLIDEAN = distances.CosineSimilarity(), distances.LpDistance(p=2, power=1)
Peer = Callable[[Tensor, Tensor], Tensor]


def mined(loss: Callable[..., Tensor], miner: Callable[..., tuple[Tensor, ...]]) -> Peer:
    return lambda x, labels: loss(x, labels, miner(x, labels))


def balanced() -> Batch:
    return realistic_batch().to(torch.float32)


def random_labels(seed: int) -> Batch:
    """Classes of all sizes, singletons too."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(40, 16, generator=generator), torch.randint(0, 16, (40,), generator=generator))


PAIRS: dict[str, tuple[Callable[..., Tensor], Peer]] = {
    "contrastive": (ContrastiveLoss(), peers.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=COSINE)),
    "contrastive over pairs": (
        ContrastiveLoss(reduction="pairs"),
        peers.ContrastiveLoss(0.9, 0.6, distance=COSINE, reducer=reducers.MeanReducer()),
    ),
    "triplet": (TripletLoss(reduction="violating"), peers.TripletMarginLoss(margin=0.1, distance=COSINE)),
    "triplet over all": (
        TripletLoss(),
        peers.TripletMarginLoss(margin=0.1, distance=COSINE, reducer=reducers.MeanReducer()),
    ),
    "triplet, soft": (
        TripletLoss(margin=0.1, soft=True),
        peers.TripletMarginLoss(margin=0.1, distance=COSINE, smooth_loss=True),
    ),
    "triplet, semi-hard": (
        TripletLoss(margin=0.3, triplets="semi-hard"),
        mined(
            peers.TripletMarginLoss(margin=0.3, distance=COSINE),
            miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard", distance=COSINE),
        ),
    ),
    "triplet, hard": (
        TripletLoss(miner=HardestMiner(), reduction="violating"),
        mined(peers.TripletMarginLoss(margin=0.1, distance=COSINE), miners.BatchHardMiner(distance=COSINE)),
    ),
    "NT-Xent": (NTXentLoss(), peers.NTXentLoss(temperature=0.1)),
    "SupCon": (SupConLoss(reduction="contributing"), peers.SupConLoss(temperature=0.1)),
    "NCA": (NCALoss(scale=2, reduction="contributing"), peers.NCALoss()),
    "NCA on similarities": (NCALoss(scale=9, reduction="contributing"), peers.NCALoss(9, distance=COSINE)),
    "circle": (CircleLoss(reduction="contributing"), peers.CircleLoss()),
    "circle for faces": (CircleLoss(0.25, 256, reduction="contributing"), peers.CircleLoss(m=0.25, gamma=256)),
    "multi-similarity": (
        MultiSimilarityLoss(base=1),
        mined(peers.MultiSimilarityLoss(2, 50, base=1), miners.MultiSimilarityMiner(0.1)),
    ),
    "multi-similarity, base 0.5": (
        MultiSimilarityLoss(),
        mined(peers.MultiSimilarityLoss(2, 50, base=0.5), miners.MultiSimilarityMiner(0.1)),
    ),
    "multi-similarity, no miner": (MultiSimilarityLoss(miner=None), peers.MultiSimilarityLoss(2, 50, base=0.5)),
    "FastAP": (FastAPLoss(), peers.FastAPLoss()),
    "FastAP, many bins": (FastAPLoss(bins=37), peers.FastAPLoss(num_bins=37)),
}


def assert_equal(
    ours: Callable[..., Tensor], peer: Peer, batch: Batch, parameters: tuple[list[Tensor], list[Tensor]] = ([], [])
) -> None:
    got, expected = value_and_gradients(ours, batch, parameters[0]), value_and_gradients(peer, batch, parameters[1])
    assert_near(got, expected, 1e-4)


@pytest.mark.parametrize("name", PAIRS)
def test_same_formula(name: str) -> None:
    for batch in (balanced(), *map(random_labels, range(3))):
        assert_equal(*PAIRS[name], batch)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("bins", [4, 100])
def test_same_histogram(bins: int) -> None:
    """Theirs is of the pairs of anchors that have both kinds: the same where every class has two samples."""
    assert_equal(HistogramLoss(bins=bins), peers.HistogramLoss(n_bins=bins), balanced())


def test_same_generalised_lifted_structure() -> None:
    """Ours has one margin, of both halves together; theirs two, of which only the difference matters."""
    ours, peer = LiftedStructureLoss(reduction="anchors"), peers.GeneralizedLiftedStructureLoss
    assert_equal(ours, peer(neg_margin=0, pos_margin=1, distance=COSINE), balanced())
    assert_equal(ours, peer(neg_margin=-1, pos_margin=0, distance=COSINE), balanced())


def test_same_n_pairs() -> None:
    """Theirs picks the first pair of each class as anchor and positive; ours is handed the two sides."""
    batch = balanced()
    first, second = (slice(start, None, 4) for start in (0, 1))

    def ours(x: Tensor, labels: Tensor) -> Tensor:
        return NPairsLoss()(x[first], labels[first], x[second], labels[second])

    assert_equal(ours, peers.NPairsLoss(distance=COSINE), batch)


def squares(classes: int, centers_per_class: int) -> Batch:
    """Sorted by class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes * centers_per_class) // centers_per_class
    centers = torch.randn(classes, 16, generator=generator)
    return Batch(centers[labels] + torch.randn(len(labels), 16, generator=generator), labels)


def with_twins(loss: Callable[..., Tensor]) -> Peer:
    """The batch as references that no anchor is among: each finds its twin, which is a positive of similarity 1."""
    return lambda x, labels: loss(x, labels, x, labels)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_same_smooth_ap(side: int, temperature: float) -> None:
    """Theirs is right where there are as many classes as samples of each, class by class, and has the query among its
    own positives."""
    ours, peer = with_twins(SmoothAPLoss(temperature)), peers.SmoothAPLoss(temperature)
    assert_equal(ours, peer, squares(side, side))


# Other formulas or reductions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [None, 2])
def test_margin_where_triplets_count_every_pair_alike(num_classes: int | None) -> None:
    """Anchors with as many positives as negatives: all pairs are in equally many triplets."""
    generator = torch.Generator().manual_seed(0)
    x, references = (torch.randn(n, 6, generator=generator) for n in (5, 8))
    batch = Batch(x, torch.tensor([0, 1, 1, 0, 0]), references, torch.tensor([0, 0, 1, 0, 1, 1, 0, 1]))
    ours = MarginLoss(beta=1.1, num_classes=num_classes, miner=None)
    peer = peers.MarginLoss(beta=1.1, num_classes=num_classes, learn_beta=True, distance=EUCLIDEAN)

    def with_references(x: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor) -> Tensor:
        return peer(x, labels, ref_emb=references, ref_labels=reference_labels)

    assert_equal(ours, with_references, batch, (list(ours.parameters()), list(peer.parameters())))


# Their faults, which must not be here ---------------------------------------------------------------------------------
