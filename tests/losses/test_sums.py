"""A sum of losses computes similarities once, and is still the sum of the losses."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch, nasty_batches
from tests.losses.cases import DEFAULTS
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal.losses import (
    ContextualLoss,
    ContrastiveLoss,
    Loss,
    MarginLoss,
    NormSoftmaxLoss,
    NTXentLoss,
    RoadmapLoss,
    SimilarityRegularizer,
    WeightedSum,
)
from vicinal.similarity import PairSource, rows

BATCHES = nasty_batches()


def random(n: int, per_class: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // per_class
    centers = torch.randn(len(labels.unique()), 16, generator=generator, dtype=torch.float64)
    x = centers[labels] + 0.3 * torch.randn(n, 16, generator=generator, dtype=torch.float64)
    return Batch(x, labels)


def separately(loss: WeightedSum, batch: Batch) -> list[Tensor]:
    terms = [value_and_gradients(term, batch) for term in loss.losses]
    return [sum(w * tensor for w, tensor in zip(loss.weights, each)) for each in zip(*terms)]  # noqa: B905


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of similarities were computed, call by call."""
    seen: list[int] = []
    similarity = PairSource.similarity

    def counted(self: PairSource, span: slice) -> Tensor:
        seen.append(span.stop - span.start)
        return similarity(self, span)

    monkeypatch.setattr(PairSource, "similarity", counted)
    return seen


@pytest.mark.parametrize("name", BATCHES)
def test_a_sum_of_all_losses_is_that_of_each(name: str) -> None:
    batch = BATCHES[name]
    cases = [case for case in DEFAULTS.values() if "num_classes" not in case.arguments and not case.is_random]
    losses = [case.loss(tile_rows=rows) for case, rows in zip(cases, cycle([None, 5, 3]), strict=False)]
    loss = WeightedSum(losses, [0.1 * (i + 1) for i in range(len(losses))])
    got, expected = value_and_gradients(loss, batch), separately(loss, batch)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(loss(*batch), got[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("loss", [RoadmapLoss(), ContextualLoss(4) + ContrastiveLoss() + 0.1 * SimilarityRegularizer()])
def test_similarities_are_computed_once(
    loss: WeightedSum, products: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = random(400, per_class=4)
    with monkeypatch.context() as patch:
        patch.setattr("vicinal.losses.contextual.loss.find_neighborhoods", None)  # a search of its own would fail
        got = value_and_gradients(loss, batch)
    assert sum(products) == 400
    assert_near(got, separately(loss, batch), 1e-12)


def test_a_contextual_loss_of_large_neighborhoods_is_computed_by_itself(products: list[int]) -> None:
    batch, loss = random(400, per_class=4), ContextualLoss(4, epsilon=1.0) + ContrastiveLoss()
    got = value_and_gradients(loss, batch)
    assert sum(products) == 800
    assert_near(got, separately(loss, batch), 1e-12)


def test_what_shares_nothing_stays_as_it_is() -> None:
    x, labels = torch.randn(6, 4), torch.arange(6) // 2
    centers = NormSoftmaxLoss(num_classes=3, dim=4)
    losses: list[Loss] = [NTXentLoss(), centers, NTXentLoss(temperature=0.5), 2 * ContrastiveLoss()]
    parts = sum(losses[1:], start=losses[0]).parts(PairSource.from_batch(x, labels))
    assert list(parts) == ["NTXentLoss", "NormSoftmaxLoss", "NTXentLoss_2", "ContrastiveLoss"]
    torch.testing.assert_close(parts["NTXentLoss_2"], losses[2](x, labels))
    torch.testing.assert_close(parts["NormSoftmaxLoss"], centers(x, labels))


@pytest.mark.parametrize("name", ["shuffled", "references around the batch"])
def test_products_of_few_entries_are_those_of_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, loss = BATCHES[name], ContrastiveLoss(negative_margin=0.3, tile_rows=3)
    monkeypatch.setattr(rows, "MAX_FRACTION", -1.0)
    expected = value_and_gradients(loss, batch)
    monkeypatch.setattr(rows, "MAX_FRACTION", 1.0)
    torch.testing.assert_close(value_and_gradients(loss, batch), expected, rtol=1e-12, atol=1e-14)


def test_a_loss_that_is_there_twice_adds_the_gradient_of_its_parameters_twice() -> None:
    loss, batch = MarginLoss(miner=None), random(12, 3)
    once, twice = value_and_gradients(loss, batch, [loss.beta]), value_and_gradients(loss + loss, batch, [loss.beta])
    assert_near(twice, [2 * tensor for tensor in once], 1e-9)
