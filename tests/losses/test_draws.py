"""Random miners inside losses: every call draws anew, and a draw depends on seed, call and place alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.losses import miner_references, references
from tests.losses.batches import Batch, realistic_batch
from vicinal.losses import HistogramLoss, MarginLoss, MultiSimilarityLoss, PairLoss, TripletLoss
from vicinal.mining import DistanceWeightedMiner

BATCH = realistic_batch()
RANDOM = [MarginLoss, partial(TripletLoss, miner=DistanceWeightedMiner())]


@pytest.mark.parametrize("make", RANDOM)
def test_every_call_draws_anew(make: type[PairLoss]) -> None:
    loss = make()
    values = {loss(*BATCH).item() for _ in range(5)}
    assert len(values) == 5
    again = make()
    assert {again(*BATCH).item() for _ in range(5)} == values


def test_a_later_call_draws_what_its_number_says() -> None:
    loss = TripletLoss(miner=DistanceWeightedMiner(seed=3))
    for call in (1, 2, 3):
        anchors = [
            miner_references.distance_weighted(anchor, seed=3, call=call)
            for anchor in references.anchors_of(Batch(*BATCH))
        ]
        torch.testing.assert_close(loss(*BATCH), references.triplet(anchors), rtol=1e-9, atol=0)


@pytest.mark.parametrize("make", RANDOM)
def test_a_restored_loss_goes_on_as_if_never_interrupted(make: type[PairLoss]) -> None:
    loss, restored = make(), make()
    loss(*BATCH)
    restored.load_state_dict(loss.state_dict())
    torch.testing.assert_close(restored(*BATCH), loss(*BATCH), rtol=0, atol=0)


def test_seeds_draw_differently() -> None:
    first, second = (MarginLoss(miner=DistanceWeightedMiner(seed=seed))(*BATCH) for seed in (0, 1))
    assert first != second


def test_nothing_is_counted_where_nothing_is_drawn() -> None:
    assert not list(MultiSimilarityLoss().buffers())
    assert not list(MarginLoss(miner=None).buffers())


def test_both_walks_of_the_histogram_loss_see_the_same_draws() -> None:
    """It goes over the rows twice; were the draws others, its gradient would be that of other pairs."""
    x = BATCH.embeddings[:8, :4].clone().requires_grad_()
    labels = BATCH.labels[:8]
    assert torch.autograd.gradcheck(lambda x: HistogramLoss(miner=DistanceWeightedMiner(num_samples=2))(x, labels), x)
