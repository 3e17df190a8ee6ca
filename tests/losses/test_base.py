"""Arithmetic of losses, their parts, and similarities that the terms of a sum compute once."""

from itertools import cycle

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch, nasty_batches
from tests.losses.cases import DEFAULTS
from tests.losses.gradients import assert_near, value_and_gradients
from tests.refusals import refused_call
from vicinal.losses import (
    ContextualLoss,
    ContrastiveLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    RoadmapLoss,
    SimilarityRegularizer,
    TripletLoss,
    WeightedSum,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mining import HardestMiner
from vicinal.similarity import PairSource, rows
from vicinal.weighting import EqualWeights, WeightedPairLoss

BATCHES = nasty_batches()
X, LABELS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
A, B = ContrastiveLoss(), NCALoss()


def test_losses_sum_subtract_negate_multiply_and_divide() -> None:
    a, b = A(X, LABELS), B(X, LABELS)
    summed = sum([A, B, A])
    assert isinstance(summed, WeightedSum)
    assert list(summed.losses) == [A, B, A]
    torch.testing.assert_close(summed(X, LABELS), 2 * a + b)
    torch.testing.assert_close((A - B / 4)(X, LABELS), a - b / 4)
    torch.testing.assert_close((-A)(X, LABELS), -a)
    torch.testing.assert_close((2 * (A + 0.5 * B) + B * 0.2)(X, LABELS), 2 * a + 1.2 * b)


def test_parts_are_named_weighted_and_add_up() -> None:
    centers = NormSoftmaxLoss(num_classes=4, dim=4)
    loss = 0.5 * A + centers + 2 * ContrastiveLoss(0.5, 0.1) + A
    parts = loss.parts(PairSource.from_batch(X, LABELS))
    assert list(parts) == ["ContrastiveLoss", "NormSoftmaxLoss", "ContrastiveLoss_2", "ContrastiveLoss_3"]
    torch.testing.assert_close(parts["ContrastiveLoss_2"], 2 * ContrastiveLoss(0.5, 0.1)(X, LABELS))
    torch.testing.assert_close(parts["NormSoftmaxLoss"], centers(X, LABELS))
    torch.testing.assert_close(sum(parts.values()), loss(X, LABELS))


def test_numbers_are_not_losses() -> None:
    for wrong in (lambda: A + 1, lambda: 1 + A, lambda: A - 1):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()


def test_the_wrong_kind_of_thing_is_named() -> None:
    for make, message in (
        (lambda: ContrastiveLoss(miner=HardestMiner), "miner must be a Miner such as"),
        (lambda: WeightedPairLoss(EqualWeights), "rule must be a WeightingRule such as"),
        (lambda: CrossBatchMemory(3, 10), "loss must be a loss"),
        (lambda: CrossBatchMemory(CrossBatchMemory(A, 10), 10), "without a memory of its own"),
        (lambda: WeightedSum([A], []), "one weight per loss"),
        (lambda: MultiSimilarityLoss(tile_rows=0), "tile_rows = 0"),
    ):
        refused_call(message, make)


def test_triplets_compiled_take_no_cubic_memory() -> None:
    largest = 0

    def look(graph: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        nonlocal largest
        values = [node.meta.get("example_value") for node in graph.graph.nodes]
        largest = max(value.numel() for value in values if isinstance(value, torch.Tensor))
        return graph

    loss, x, labels = TripletLoss(), torch.randn(300, 8, requires_grad=True), torch.arange(300) % 3
    value = torch.compile(loss, fullgraph=True, backend=look)(x, labels)
    torch.testing.assert_close(value, loss(x, labels))
    assert largest == 300 * 300


# Similarities that are computed once ----------------------------------------------------------------------------------


def random(n: int, per_class: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // per_class
    centers = torch.randn(len(labels.unique()), 16, generator=generator, dtype=torch.float64)
    return Batch(centers[labels] + 0.3 * torch.randn(n, 16, generator=generator, dtype=torch.float64), labels)


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


SHARED = ["shuffled", "singletons", "all singletons", "one sample", "duplicates", "zero vector"]
SHARED += ["references around the batch", "references beside the batch", "references lack a class"]


@pytest.mark.parametrize("name", SHARED)
def test_a_sum_of_all_losses_is_that_of_each(name: str) -> None:
    batch = BATCHES[name]
    cases = [case for case in DEFAULTS.values() if "num_classes" not in case.arguments and not case.is_random]
    losses: list[Loss] = [case.loss(tile_rows=rows) for case, rows in zip(cases, cycle([None, 5, 3]), strict=False)]
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


@pytest.mark.parametrize("name", ["shuffled", "references around the batch"])
def test_products_of_few_entries_are_those_of_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, loss = BATCHES[name], ContrastiveLoss(negative_margin=0.3, tile_rows=3)
    monkeypatch.setattr(rows, "MAX_FRACTION", -1.0)
    expected = value_and_gradients(loss, batch)
    monkeypatch.setattr(rows, "MAX_FRACTION", 1.0)
    torch.testing.assert_close(value_and_gradients(loss, batch), expected, rtol=1e-12, atol=1e-14)


def test_a_term_that_occurs_twice_adds_the_gradient_of_its_parameters_twice() -> None:
    loss, batch = MarginLoss(miner=None), random(12, 3)
    once, twice = value_and_gradients(loss, batch, [loss.beta]), value_and_gradients(loss + loss, batch, [loss.beta])
    assert_near(twice, [2 * tensor for tensor in once], 1e-9)
