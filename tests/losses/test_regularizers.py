"""The similarity regulariser against its formula, pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch, nasty_batches
from tests.losses.gradients import value_and_gradients
from vicinal.losses import SimilarityRegularizer
from vicinal.memory import CrossBatchMemory

BATCHES = nasty_batches()


def by_hand(*batch: Tensor | int | None, target: float = 0.3) -> Tensor:
    """Eq. (7), one pair after the other, each sample with itself included."""
    x, _, references, *_ = [*batch, None]
    unit = [v / v.norm() if v.norm() > 0 else v / 1e-3 for v in x]
    others = unit if references is None else [v / v.norm() for v in references]
    similarities = [(a * b).sum() for a in unit for b in others]
    return (target - sum(similarities) / len(similarities)) ** 2


@pytest.mark.parametrize("name", BATCHES)
def test_value_and_gradients(name: str) -> None:
    for target in (0.3, 0.0, -0.5, 1.0):
        batch = BATCHES[name]
        got = value_and_gradients(SimilarityRegularizer(target), batch)
        expected = value_and_gradients(lambda *batch, target=target: by_hand(*batch, target=target), batch)
        if name == "collapsed" and target == 1.0:
            expected = [torch.zeros_like(part) for part in expected]  # at its goal
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_default_is_the_papers() -> None:
    x = BATCHES["shuffled"].embeddings
    assert SimilarityRegularizer()(x, torch.arange(12)) == SimilarityRegularizer(0.3)(x, torch.arange(12))
    # Of two opposites the mean over all four pairs is 0, and of one sample 1: with itself.
    assert SimilarityRegularizer(0.3)(torch.tensor([[2.0], [-3.0]]), torch.arange(2)).item() == pytest.approx(0.09)
    assert SimilarityRegularizer(0.3)(torch.tensor([[2.0]]), torch.arange(1)).item() == pytest.approx(0.49)


def test_labels_and_masks_do_not_matter() -> None:
    x = BATCHES["shuffled"].embeddings
    expected = SimilarityRegularizer()(x, torch.arange(12))
    nothing = torch.zeros(12, 12, dtype=torch.bool)
    for arguments in (
        {"labels": torch.zeros(12, dtype=torch.int64)},
        {"labels": torch.arange(12), "relation": lambda a, b: (a[:, None] - b).abs() < 3},
        {"positive": nothing, "negative": nothing},
    ):
        assert SimilarityRegularizer()(x, **arguments) == expected


def test_memory_takes_part() -> None:
    """The mean is that of the batch with the batch and all that is remembered."""
    loss = CrossBatchMemory(SimilarityRegularizer(), size=12)
    first, second = BATCHES["shuffled"].embeddings[:5], BATCHES["unequal classes"].embeddings[:5]
    loss(first, torch.arange(5))
    value = loss(second, torch.arange(5))
    torch.testing.assert_close(value, by_hand(second, None, torch.cat([first, second])))


def test_nothing_and_what_is_broken() -> None:
    x = torch.randn(4, 3)
    for batch in (Batch(x[:0], torch.arange(0)), Batch(x, torch.arange(4), x[:0], torch.arange(0))):
        value, gradient, *_ = value_and_gradients(SimilarityRegularizer(), batch)
        assert value == 0
        assert not gradient.any()
    x[2, 1] = torch.nan
    assert SimilarityRegularizer()(x, torch.arange(4)).isnan()
