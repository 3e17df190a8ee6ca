"""Ranking losses against the metrics they stand for: recall at k and average precision of exactly sorted rankings."""

from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score
from torch import Tensor

from tests.losses.allocations import largest_allocation
from tests.losses.batches import Batch, nasty_batches
from tests.losses.gradients import value_and_gradients
from vicinal import losses
from vicinal.similarity import PairSource
from vicinal.weighting import pair_weights

RANKING: list[type[losses.RankingLoss]] = [
    losses.RecallAtKLoss,
    losses.SmoothAPLoss,
    losses.SupAPLoss,
    losses.FastAPLoss,
    losses.SoftBinAPLoss,
    losses.BlackboxAPLoss,
]
COLD = 1e-9  # no two similarities that differ are that near


class Ranking(NamedTuple):
    """The similarities of a query to all others, and which of these are positive."""

    scores: np.ndarray
    relevant: np.ndarray

    @property
    def average_precision(self) -> float:
        """Ties count as the worse rank."""
        return average_precision_score(self.relevant, self.scores)

    @property
    def ranks(self) -> np.ndarray:
        """Of the positives; tied ones have the mean of their ranks, as half a step for a difference of 0 says."""
        return rankdata(-self.scores, method="average")[self.relevant]


def rankings(x: Tensor, labels: Tensor) -> list[Ranking]:
    """Of the queries that have a positive."""
    x = x / x.norm(dim=1, keepdim=True)
    similarity, same = (x @ x.T).numpy(), (labels[:, None] == labels).numpy()
    others = ~np.eye(len(x), dtype=bool)
    seen = [Ranking(s[other], positive[other]) for s, positive, other in zip(similarity, same, others, strict=True)]
    return [ranking for ranking in seen if ranking.relevant.any()]


def batches() -> dict[str, tuple[Tensor, Tensor]]:
    """Unequal classes in no order; without ties, and with many that are exact also in floating point."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 9 + [1] * 6 + [2] * 4 + [3] * 3 + [4] * 2 + [5, 6])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centers = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), 5, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (len(labels), 16), generator=generator) * 2.0 - 1
    return {
        "random": (noise, labels),
        "clusters": (centers[labels] + 0.8 * noise, labels),
        "ties": (signs.double(), labels),
        "many ties": (signs[:, :4].double(), labels),
    }


BATCHES = batches()
WITHOUT_TIES = ["random", "clusters"]


# Recall at k ----------------------------------------------------------------------------------------------------------


def cold_recall(k: int | list[int]) -> losses.RecallAtKLoss:
    return losses.RecallAtKLoss(k, rank_temperature=1e-3, similarity_temperature=COLD)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16, 25, 100])
@pytest.mark.parametrize("batch", BATCHES)
def test_recall_of_cold_temperatures(batch: str, k: int) -> None:
    """A positive at rank k itself counts half, as the sigmoid of 0 is; all others count or do not."""
    expected = [
        1 - min(np.heaviside(k - r.ranks, 0.5).sum(), k) / min(k, r.relevant.sum()) for r in rankings(*BATCHES[batch])
    ]
    assert cold_recall(k)(*BATCHES[batch]).item() == pytest.approx(np.mean(expected), abs=1e-12)


def test_recall_is_at_most_one() -> None:
    together = torch.ones(40, 3, dtype=torch.float64) + torch.eye(40, 3, dtype=torch.float64) * 1e-7
    for k in (1, 2, 8):  # forty near ranks would count more than k
        values = losses.RecallAtKLoss(k, rank_temperature=30)(together, torch.zeros(40, dtype=torch.int64))
        assert values == 0


# Average precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", WITHOUT_TIES)
def test_smooth_ap_of_a_cold_temperature_is_average_precision(batch: str) -> None:
    expected = 1 - np.mean([r.average_precision for r in rankings(*BATCHES[batch])])
    assert losses.SmoothAPLoss(COLD)(*BATCHES[batch]).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("margin", [0.0, 0.0371])  # ties of moved similarities are a matter of rounding: no difference
@pytest.mark.parametrize("batch", BATCHES)
def test_blackbox_ap_is_average_precision_of_similarities_moved_by_the_margin(batch: str, margin: float) -> None:
    moved = [Ranking(r.scores - margin * r.relevant, r.relevant) for r in rankings(*BATCHES[batch])]
    expected = 1 - np.mean([r.average_precision for r in moved])
    assert losses.BlackboxAPLoss(margin=margin)(*BATCHES[batch]).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("batch", BATCHES)
def test_sup_ap_is_never_below(batch: str) -> None:
    x, labels = BATCHES[batch]
    has_positive = (labels[:, None] == labels).sum(dim=1) > 1
    lowest = 1 - torch.tensor([r.average_precision for r in rankings(x, labels)], dtype=torch.float64)
    for temperature, line in product((COLD, 0.01, 0.3), ((0.05, 100.0), (0.0, 0.0), (0.3, 1.0))):
        loss = losses.SupAPLoss(temperature, *line, reduction="sum")
        values = loss.anchor_values(PairSource.from_batch(x, labels))
        torch.testing.assert_close(values.sum(), loss(x, labels))
        assert (values[has_positive] >= lowest - 1e-12).all(), (temperature, line)


@pytest.mark.parametrize("batch", BATCHES)
def test_sup_ap_of_a_cold_temperature_and_no_slope(batch: str) -> None:
    """The bound's own limit: 1 for a tie, as exact, and one and a half for a negative above."""
    expected = []
    for r in rankings(*BATCHES[batch]):
        positives, negatives = r.scores[r.relevant], r.scores[~r.relevant]
        among = (positives >= positives[:, None]).sum(axis=1)
        above = (np.heaviside(negatives - positives[:, None], 2 / 3) * 1.5).sum(axis=1)
        expected.append(1 - np.mean(among / (among + above)))
    loss = losses.SupAPLoss(COLD, linear_from=1.0, slope=0.0)(*BATCHES[batch])
    assert loss.item() == pytest.approx(np.mean(expected), abs=1e-12)


BINNED = {"FastAP": partial(losses.FastAPLoss, 16), "SoftBinAP": partial(losses.SoftBinAPLoss, 17)}


@pytest.mark.parametrize("name", BINNED)
def test_binned_ap_of_similarities_on_nodes_is_average_precision(name: str) -> None:
    """Similarities are multiples of 1/8; those at one node are tied, and count as the worse rank."""
    for batch in ("ties", "many ties"):
        expected = 1 - np.mean([r.average_precision for r in rankings(*BATCHES[batch])])
        assert BINNED[name]()(*BATCHES[batch]).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", RANKING)
def test_at_best_zero_and_at_most_one(kind: type[losses.RankingLoss]) -> None:
    for batch in nasty_batches().values():
        for reduction in ("contributing", "anchors"):
            assert -1e-12 <= kind(reduction=reduction)(*batch).item() <= 1 + 1e-12
    apart = torch.eye(4, dtype=torch.float64).repeat_interleave(3, dim=0)
    value = kind()(apart, torch.arange(12) // 3)
    assert (
        value < 1e-12 or kind is losses.RecallAtKLoss
    )  # which is near 0 where P is larger than k, and else half at rank k


def test_roadmap_is_its_two_terms() -> None:
    x, labels = BATCHES["clusters"]
    for weight in (0.0, 0.5, 0.9, 1.0):
        ranking, calibration = losses.SupAPLoss(0.02, 0.1, 30.0), losses.ContrastiveLoss(0.8, 0.4)
        loss = losses.RoadmapLoss(weight, 0.8, 0.4, 0.02, 0.1, 30.0, tile_rows=5)
        parts = loss.parts(PairSource.from_batch(x, labels))
        assert list(parts) == ["SupAPLoss", "ContrastiveLoss"]
        torch.testing.assert_close(parts["SupAPLoss"], (1 - weight) * ranking(x, labels))
        torch.testing.assert_close(parts["ContrastiveLoss"], weight * calibration(x, labels))
        by_hand = value_and_gradients((1 - weight) * ranking + weight * calibration, Batch(x, labels))
        torch.testing.assert_close(value_and_gradients(loss, Batch(x, labels)), by_hand)
    by_default = 0.5 * losses.SupAPLoss() + 0.5 * losses.ContrastiveLoss(0.9, 0.6)
    torch.testing.assert_close(losses.RoadmapLoss()(x, labels), by_default(x, labels))


# Gradients ------------------------------------------------------------------------------------------------------------


def clustered(spread: float, n: int = 256, dim: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // 4
    centers = torch.randn(n // 4, dim, generator=generator)
    return centers[labels] + spread * torch.randn(n, dim, generator=generator), labels


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("make", [*RANKING, losses.RoadmapLoss, lambda: losses.RecallAtKLoss([1, 2, 4])])
def test_no_denormal_numbers(make: type[losses.RankingLoss], spread: float) -> None:
    """From well separated classes to none, where positives are at high ranks: processors are many times slower."""
    signed = pair_weights(make(), PairSource.from_batch(*clustered(spread)), signed=True)
    assert signed.dtype == torch.float32
    tiny = torch.finfo(torch.float32).tiny
    assert not ((signed != 0) & (signed.abs() < tiny)).any()


@pytest.mark.parametrize("kind", RANKING)
def test_a_class_of_hundreds_takes_the_memory_of_a_tile(kind: type[losses.RankingLoss]) -> None:
    """500 of a class among 2,000: memory is that of a tile, neither 500 times it nor that of the whole matrix."""
    labels = torch.cat([torch.zeros(500, dtype=torch.int64), torch.arange(1500) // 4 + 1])
    x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    rows = slice(490, 506)  # a tile of both kinds of classes

    def forward_and_backward() -> None:
        leaf = x.clone().requires_grad_()
        kind(tile_rows=8)(leaf[rows], labels[rows], leaf, labels, rows.start).backward()

    tile = 8 * 2000 * 4
    assert largest_allocation(forward_and_backward) <= max(2 * tile, x.nbytes)


def test_ties_do_not_depend_on_rounding() -> None:
    """The similarities of one pair of vectors differ by rounding from tile to tile; as ties they must not."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(8, 7, generator=generator)[torch.randint(0, 8, (37,), generator=generator)]
    labels = (x[:, 0] > 0).long()
    for kind in (losses.SupAPLoss, losses.BlackboxAPLoss):
        for tile_rows in (None, 1, 3):
            value = kind(tile_rows=tile_rows)(x, labels)
            torch.testing.assert_close(value, kind()(x.double(), labels).float(), rtol=1e-5, atol=0)
