"""Value and gradient beside pytorch-metric-learning 2.9, where its formula is ours."""

from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import distances, miners
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
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    SupConLoss,
    TripletLoss,
)
from vicinal.mining import HardestMiner

COSINE = distances.CosineSimilarity()
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
    "triplet": (TripletLoss(reduction="violating"), peers.TripletMarginLoss(margin=0.1, distance=COSINE)),
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
    "circle": (CircleLoss(reduction="contributing"), peers.CircleLoss()),
    "multi-similarity": (
        MultiSimilarityLoss(base=1),
        mined(peers.MultiSimilarityLoss(2, 50, base=1), miners.MultiSimilarityMiner(0.1)),
    ),
    "FastAP": (FastAPLoss(), peers.FastAPLoss()),
}


def assert_equal(ours: Callable[..., Tensor], peer: Peer, batch: Batch) -> None:
    assert_near(value_and_gradients(ours, batch), value_and_gradients(peer, batch), 1e-4)


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


def test_nca_where_the_softmax_underflows() -> None:
    """In float32 too the worst anchors have a loss and a gradient."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.3], [1.0, 0.2], [-1.0, 0.1], [0.0, 1.0], [0.0, 1.0]])
    batch = Batch(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss = NCALoss(scale=500)
    value, gradient = value_and_gradients(loss, batch)
    assert_near([value, gradient], value_and_gradients(loss, batch.to(torch.float64)), 1e-4)
    assert value > 3000
    assert gradient[:4].norm(dim=1).min() > 1
