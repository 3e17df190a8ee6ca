"""Batches with nothing to learn from, and broken ones."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.losses.batches import Batch, nasty_batches
from tests.losses.cases import CASES, DEFAULTS, EACH, MINERS

BATCHES = nasty_batches()
NASTY_FOR_MINERS = ("singletons", "collapsed", "references lack a class")


@pytest.mark.parametrize("case", CASES)
def test_no_pair_is_a_zero_that_backpropagates(case: str) -> None:
    """One sample has no pair, and masks may leave none."""
    x = torch.randn(6, 4)
    no_pair = torch.zeros(6, 6, dtype=torch.bool)
    labels = torch.zeros(6, dtype=torch.int64)
    for tile_rows in (None, 2):
        loss = CASES[case].loss(tile_rows=tile_rows)
        for anchors, masks in ((x[:1], {}), (x, {"positive": no_pair, "negative": no_pair})):
            leaf = anchors.clone().requires_grad_()
            value = loss(leaf, labels[: len(anchors)], **masks)
            value.backward()
            assert value.item() == 0
            assert leaf.grad is not None
            assert not leaf.grad.any()


SEPARATED = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
PERFECT = [
    "contrastive",
    "ContrastiveLoss(reduction=pairs)",
    "multi-similarity",
    "LiftedStructureLoss(margin=-2.0)",
    "triplet, all",
    "triplet, semi-hard",
    "triplet, hard",
    "triplet, distance-weighted",
    "margin",
    "histogram",
]
"""Losses with nothing more to say where classes are single points, opposite each other."""


@pytest.mark.parametrize("case", PERFECT)
def test_no_violating_pair_is_a_zero_that_backpropagates(case: str) -> None:
    x = SEPARATED.clone().requires_grad_()
    value = CASES[case].loss()(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("case", EACH)
def test_zero_vectors_and_duplicates_have_finite_gradients(case: str) -> None:
    """Also where all are zero or equal, in float32, whose rounding differs from that of the formulas' tests."""
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    for x in (torch.zeros(6, 3), torch.ones(6, 3), torch.tensor([[0.3, 0.1, -0.7]]).repeat(6, 1), -torch.eye(6)[:, :1]):
        for value in EACH[case].values(Batch(x, labels)):
            assert value.isfinite().all()


@pytest.mark.parametrize("case", DEFAULTS)
def test_any_miner_goes_with_any_loss(case: str) -> None:
    """Whatever pairs a miner leaves, none included, the loss is finite and the same in tiles."""
    for (name, (miner, _)), batch_name in itertools.product(MINERS.items(), NASTY_FOR_MINERS):
        arguments = {**DEFAULTS[case].arguments, "miner": miner}
        batch = DEFAULTS[case].suited(BATCHES[batch_name])
        value = DEFAULTS[case].kind(**arguments)(*batch)
        assert value.isfinite(), f"{name}, {batch_name}"
        tiled = DEFAULTS[case].kind(**arguments, tile_rows=1)(*batch)
        torch.testing.assert_close(tiled, value, rtol=1e-10, atol=1e-7)
