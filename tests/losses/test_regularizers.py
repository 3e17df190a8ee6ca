"""The similarity regulariser against its formula, pair by pair."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.losses.batches import nasty_batches
from tests.losses.gradients import value_and_gradients
from vicinal.losses import SimilarityRegularizer

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
    for target in ({}, {"target": 0.0}, {"target": -0.5}, {"target": 1.0}):
        batch = BATCHES[name]
        got = value_and_gradients(SimilarityRegularizer(**target), batch)
        expected = value_and_gradients(partial(by_hand, **target), batch)
        if name == "collapsed" and target == {"target": 1.0}:
            expected = [torch.zeros_like(part) for part in expected]  # at its goal
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


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
