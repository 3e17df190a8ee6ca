"""Value and gradient beside pytorch-metric-learning 2.9: equal where its formula is ours, explained where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as peers
from torch import Tensor

from tests.losses.batches import Batch, realistic_batch
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal import losses
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
    "contrastive": (losses.ContrastiveLoss(), peers.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=COSINE)),
    "contrastive over pairs": (
        losses.ContrastiveLoss(reduction="pairs"),
        peers.ContrastiveLoss(0.9, 0.6, distance=COSINE, reducer=reducers.MeanReducer()),
    ),
    "triplet": (losses.TripletLoss(reduction="violating"), peers.TripletMarginLoss(margin=0.1, distance=COSINE)),
    "triplet over all": (
        losses.TripletLoss(),
        peers.TripletMarginLoss(margin=0.1, distance=COSINE, reducer=reducers.MeanReducer()),
    ),
    "triplet, soft": (
        losses.TripletLoss(margin=0.1, soft=True),
        peers.TripletMarginLoss(margin=0.1, distance=COSINE, smooth_loss=True),
    ),
    "triplet, semi-hard": (
        losses.TripletLoss(margin=0.3, triplets="semi-hard"),
        mined(
            peers.TripletMarginLoss(margin=0.3, distance=COSINE),
            miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard", distance=COSINE),
        ),
    ),
    "triplet, hard": (
        losses.TripletLoss(miner=HardestMiner(), reduction="violating"),
        mined(peers.TripletMarginLoss(margin=0.1, distance=COSINE), miners.BatchHardMiner(distance=COSINE)),
    ),
    "NT-Xent": (losses.NTXentLoss(), peers.NTXentLoss(temperature=0.1)),
    "SupCon": (losses.SupConLoss(reduction="contributing"), peers.SupConLoss(temperature=0.1)),
    "NCA": (losses.NCALoss(scale=2, reduction="contributing"), peers.NCALoss()),
    "NCA on similarities": (losses.NCALoss(scale=9, reduction="contributing"), peers.NCALoss(9, distance=COSINE)),
    "circle": (losses.CircleLoss(reduction="contributing"), peers.CircleLoss()),
    "circle for faces": (losses.CircleLoss(0.25, 256, reduction="contributing"), peers.CircleLoss(m=0.25, gamma=256)),
    "multi-similarity": (
        losses.MultiSimilarityLoss(base=1),
        mined(peers.MultiSimilarityLoss(2, 50, base=1), miners.MultiSimilarityMiner(0.1)),
    ),
    "multi-similarity, base 0.5": (
        losses.MultiSimilarityLoss(),
        mined(peers.MultiSimilarityLoss(2, 50, base=0.5), miners.MultiSimilarityMiner(0.1)),
    ),
    "multi-similarity, no miner": (losses.MultiSimilarityLoss(miner=None), peers.MultiSimilarityLoss(2, 50, base=0.5)),
    "FastAP": (losses.FastAPLoss(), peers.FastAPLoss()),
    "FastAP, many bins": (losses.FastAPLoss(bins=37), peers.FastAPLoss(num_bins=37)),
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
    assert_equal(losses.HistogramLoss(bins=bins), peers.HistogramLoss(n_bins=bins), balanced())


def test_same_generalised_lifted_structure() -> None:
    """Ours has one margin, of both halves together; theirs two, of which only the difference matters."""
    ours, peer = losses.LiftedStructureLoss(reduction="anchors"), peers.GeneralizedLiftedStructureLoss
    assert_equal(ours, peer(neg_margin=0, pos_margin=1, distance=COSINE), balanced())
    assert_equal(ours, peer(neg_margin=-1, pos_margin=0, distance=COSINE), balanced())


def test_same_n_pairs() -> None:
    """Theirs picks the first pair of each class as anchor and positive; ours is handed the two sides."""
    batch = balanced()
    first, second = (slice(start, None, 4) for start in (0, 1))

    def ours(x: Tensor, labels: Tensor) -> Tensor:
        return losses.NPairsLoss()(x[first], labels[first], x[second], labels[second])

    assert_equal(ours, peers.NPairsLoss(distance=COSINE), batch)


def squares(classes: int, centers_per_class: int) -> Batch:
    """Sorted by class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes * centers_per_class) // centers_per_class
    centers = torch.randn(classes, 16, generator=generator)
    return Batch(centers[labels] + torch.randn(len(labels), 16, generator=generator), labels)


def with_itself(loss: Callable[..., Tensor]) -> Peer:
    """The batch as references that no anchor is among: each finds itself, a positive of similarity 1."""
    return lambda x, labels: loss(x, labels, x, labels)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_same_smooth_ap(side: int, temperature: float) -> None:
    """Theirs is right where there are as many classes as samples of each, class by class, and has the query among its
    own positives."""
    ours, peer = with_itself(losses.SmoothAPLoss(temperature)), peers.SmoothAPLoss(temperature)
    assert_equal(ours, peer, squares(side, side))


# Other formulas or reductions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [None, 2])
def test_margin_where_triplets_count_every_pair_alike(num_classes: int | None) -> None:
    """Anchors with as many positives as negatives: all pairs are in equally many triplets."""
    generator = torch.Generator().manual_seed(0)
    x, references = (torch.randn(n, 6, generator=generator) for n in (5, 8))
    batch = Batch(x, torch.tensor([0, 1, 1, 0, 0]), references, torch.tensor([0, 0, 1, 0, 1, 1, 0, 1]))
    ours = losses.MarginLoss(beta=1.1, num_classes=num_classes, miner=None)
    peer = peers.MarginLoss(beta=1.1, num_classes=num_classes, learn_beta=True, distance=EUCLIDEAN)

    def with_references(x: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor) -> Tensor:
        return peer(x, labels, ref_emb=references, ref_labels=reference_labels)

    assert_equal(ours, with_references, batch, (list(ours.parameters()), list(peer.parameters())))


def test_nt_xent_of_a_hopeless_pair() -> None:
    """Theirs adds float32's smallest number to the ratio inside the logarithm, which bounds the loss by 87 and takes
    the gradient away where it is needed most; the formula has no such term."""
    x, references = torch.tensor([[1.0, 0.1]]), torch.tensor([[-1.0, 0.0], [1.0, 0.0], [1.0, 0.2]])
    batch = Batch(x, torch.tensor([0]), references, torch.tensor([0, 1, 1]))
    peer = peers.NTXentLoss(temperature=0.01)
    ours, by_x, _ = value_and_gradients(losses.NTXentLoss(temperature=0.01), batch)
    theirs, peer_by_x, _ = value_and_gradients(
        lambda x, labels, others, of: peer(x, labels, ref_emb=others, ref_labels=of), batch
    )
    assert ours.item() == pytest.approx(2 * 0.995 / 0.01 + math.log(2), rel=1e-3)  # 0.995 is the cosine to both sides
    assert theirs.item() == pytest.approx(87.3, abs=0.1)
    assert by_x.norm() > 5
    assert peer_by_x.norm() < 1e-3


# Their faults, which must not be here ---------------------------------------------------------------------------------


def test_nca_where_the_softmax_underflows() -> None:
    """Theirs leaves out anchors whose softmax is 0 in float32: the worst ones have neither a loss nor a gradient."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.3], [1.0, 0.2], [-1.0, 0.1], [0.0, 1.0], [0.0, 1.0]])
    batch = Batch(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss = losses.NCALoss(scale=500)
    value, gradient = value_and_gradients(loss, batch)
    assert_near([value, gradient], value_and_gradients(loss, batch.to(torch.float64)), 1e-4)
    assert value > 3000
    assert gradient[:4].norm(dim=1).min() > 1
    peer_value, peer_gradient = value_and_gradients(peers.NCALoss(500, distance=COSINE), batch)
    assert peer_value == 0
    assert not peer_gradient.any()


def published_recall_at_k(x: Tensor, labels: Tensor, ks: tuple[int, ...]) -> list[float]:
    """RS@k of each query as its published code reads it: the query is among the ranked, though not a positive."""
    x = torch.nn.functional.normalize(x.double())
    s, values = (x @ x.T).tolist(), []
    for q in range(len(x)):
        positives = [i for i in range(len(x)) if i != q and labels[i] == labels[q]]
        ranks = [
            1 + sum(1 / (1 + math.exp((s[q][i] - s[q][z]) / 0.01)) for z in range(len(x)) if z != i) for i in positives
        ]
        found = [sum(1 / (1 + math.exp(rank - k)) for rank in ranks) for k in ks]
        values.append(1 - sum(min(f, k) / min(k, len(ranks)) for f, k in zip(found, ks, strict=True)) / len(ks))
    return values


def test_the_query_in_every_rank() -> None:
    """In the published code of RS@k every rank is one too high, which is the query's own: a perfect ranking, whose
    positives have ranks 1, 2 and 3, has the loss of ranks 2, 3 and 4."""
    ks = (1, 2, 4, 8, 16)
    angles = torch.tensor([1, 0.9, 0.8, 0.7, 0.3, 0.2, 0.1], dtype=torch.float64).acos()
    x, labels = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 0, 0, 1, 2, 3])
    ours = losses.RecallAtKLoss(ks)(x[:1], labels[:1], x, labels, 0).item()
    assert ours == pytest.approx(0.102, abs=1e-3)
    sigmoids = {k: [1 / (1 + math.exp(rank - k)) for rank in (1, 2, 3)] for k in ks}
    assert ours == pytest.approx(1 - sum(min(sum(f), k) / min(k, 3) for k, f in sigmoids.items()) / 5, abs=1e-4)
    assert published_recall_at_k(x[:4], labels[:4], ks)[0] == pytest.approx(0.285, abs=1e-3)
