"""Composition of losses, their parts, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from vicinal.losses import MultiSimilarityLoss, WeightedSum
from vicinal.similarity import PairSource
from vicinal.utils.errors import InputError

X, LABELS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
FIRST, SECOND = MultiSimilarityLoss(), MultiSimilarityLoss(miner=None, base=0.5)


def test_sum_and_product_are_those_of_numbers() -> None:
    a, b = FIRST(X, LABELS), SECOND(X, LABELS)
    torch.testing.assert_close((0.8 * FIRST + SECOND * 0.2)(X, LABELS), 0.8 * a + 0.2 * b)
    torch.testing.assert_close((2 * (FIRST + 0.5 * SECOND))(X, LABELS), 2 * a + b)


def test_parts_are_named_weighted_and_add_up() -> None:
    loss = 0.5 * FIRST + 2 * SECOND + FIRST
    parts = loss.parts(PairSource.from_batch(X, LABELS))
    assert list(parts) == ["MultiSimilarityLoss", "MultiSimilarityLoss_2", "MultiSimilarityLoss_3"]
    torch.testing.assert_close(parts["MultiSimilarityLoss_2"], 2 * SECOND(X, LABELS))
    torch.testing.assert_close(sum(parts.values()), loss(X, LABELS))


def test_sum_backpropagates_and_registers_its_losses() -> None:
    x = X.clone().requires_grad_()
    loss = FIRST + SECOND
    loss(x, LABELS).backward()
    assert x.grad is not None
    assert list(loss.losses) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], LABELS), "embeddings must be float"),
        ((X.long(), LABELS), "embeddings must be float"),
        ((X, LABELS[:3]), r"labels must be int \[8\]"),
        ((X, LABELS.float()), "labels must be int"),
        ((X, LABELS, X), "without reference_labels"),
        ((X, LABELS, None, LABELS), "no references"),
        ((X, LABELS, X[:, :3], LABELS), "4 dimensions and references 3"),
        ((X, LABELS, X, LABELS, 1), "offset = 1 places 8 anchors outside the 8 references"),
        ((X, LABELS, X, LABELS[:2]), r"reference_labels must be int \[8\]"),
    ],
)
def test_bad_input(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FIRST(*arguments)


def test_bad_sum_and_bad_tiles() -> None:
    with pytest.raises(InputError, match="one weight per loss"):
        WeightedSum([FIRST], [])
    with pytest.raises(InputError, match="tile_rows = 0"):
        MultiSimilarityLoss(tile_rows=0)
