"""Recall@k against its surrogate: by hand, in the limit, where the paper's figures say so, and drawn."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.figures.recall_surrogate import recall_curve
from vicinal.losses import RecallAtKLoss
from vicinal.weighting import similarity_weights


def query(positives: int, negatives: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    similarity = 2 * torch.rand(positives + negatives, generator=generator, dtype=torch.float64) - 1
    return similarity, torch.randperm(positives + negatives, generator=generator) < positives


def ranks(similarity: Sequence[float], positive: Sequence[bool]) -> list[int]:
    """Eq. (2): of each positive, where H(0) = 1."""
    items = range(len(similarity))
    return [1 + sum(similarity[z] >= similarity[x] for z in items if z != x) for x in items if positive[x]]


def moved_ranks(similarity: Tensor, positive: Tensor, moved: int, values: Tensor) -> list[list[int]]:
    rows = [[*similarity[:moved].tolist(), value, *similarity[moved + 1 :].tolist()] for value in values.tolist()]
    return [ranks(row, positive.tolist()) for row in rows]


@pytest.mark.parametrize(("positives", "negatives"), [(1, 9), (4, 12), (6, 1), (3, 0)])
@pytest.mark.parametrize("k", [1, 2, 4, 50, (1, 2, 4, 8, 16)])
def test_recall_is_that_of_equation_1_in_training(positives: int, negatives: int, k: int | tuple[int, ...]) -> None:
    similarity, positive = query(positives, negatives, seed=0)
    similarity = similarity.mul(4).round().div(4)  # many are equal
    values = torch.linspace(-1, 1, 17, dtype=torch.float64)
    for moved in range(len(similarity)):
        recall = recall_curve(RecallAtKLoss(k), similarity, positive, moved, values).recall
        ks = [k] if isinstance(k, int) else k
        for own, found in zip(recall.tolist(), moved_ranks(similarity, positive, moved, values), strict=True):
            fractions = [sum(rank <= number for rank in found) / min(number, positives) for number in ks]
            assert own == pytest.approx(np.mean(fractions), abs=1e-15)


def test_the_two_are_close_at_the_defaults() -> None:
    """Fig. 2. Each positive adds at most `sigmoid(-|k - rank|)` to the difference, where no two are nearly equal."""
    similarity, positive = query(5, 25, seed=2)
    similarity = torch.linspace(-0.9, 0.9, 30, dtype=torch.float64)[similarity.argsort()]
    moved, values = int(positive.int().argmax()), torch.linspace(-0.9, 0.9, 30, dtype=torch.float64) + 0.03
    found = moved_ranks(similarity, positive, moved, values)
    far = 0
    for k in (1, 2, 4, 8, 16):
        curve = recall_curve(RecallAtKLoss(k), similarity, positive, moved, values)
        for difference, of_positives in zip((curve.surrogate - curve.recall).abs().tolist(), found, strict=True):
            bound = sum(1 / (1 + np.exp(abs(k - rank))) for rank in of_positives) / min(k, 5)
            assert difference <= bound + 0.02  # of the other sigmoid: neighbors are 3 temperatures away
            if min(abs(k - rank) for rank in of_positives) >= 4:
                far += 1
                assert difference < 0.05
    assert far


def test_it_is_the_loss_itself() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(12, 5, generator=torch.Generator().manual_seed(4)).double())
    similarity, positive = vectors[1:] @ vectors[0], torch.arange(11) % 3 == 0
    for loss in (RecallAtKLoss(), RecallAtKLoss(2, 0.5, 0.1, reduction="sum")):
        curve = recall_curve(loss, similarity, positive, 6, similarity[6:7])
        value = loss(vectors[:1], references=vectors[1:], positive=positive[None])
        torch.testing.assert_close(curve.surrogate[0], 1 - value)
        weights = similarity_weights(loss, similarity[None], positive[None], signed=True)
        torch.testing.assert_close(curve.grad_similarity[0], -weights[0, 6])
        assert abs(curve.grad_similarity[0]) > 1e-3
