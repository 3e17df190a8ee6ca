"""Guarantees of all pair losses: references, pairs given by masks, memory of a tile, random miners."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses import miner_references, references
from tests.losses.batches import Batch, nasty_batches, realistic_batch
from tests.losses.cases import DEFAULTS, EACH
from tests.losses.gradients import value_and_gradients
from vicinal.losses import MarginLoss, MultiSimilarityLoss, TripletLoss
from vicinal.mining import DistanceWeightedMiner

BATCHES = nasty_batches()
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


@pytest.mark.parametrize("case", EACH)
def test_references_may_be_the_same_object_or_a_copy(case: str) -> None:
    """Which reference an anchor is, the offset says; nothing is guessed from whose memory it lies in."""
    batch = EACH[case].suited(BATCHES["unequal classes"])
    value, gradient, *_ = EACH[case].values(batch)
    x = batch.embeddings.clone().requires_grad_()
    for others, labels in ((x, batch.labels), (x.clone(), batch.labels.clone())):
        found = EACH[case].loss().double()(x, batch.labels, others, labels, 0)
        torch.testing.assert_close(found.detach(), value, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(found, x)[0], gradient, **CLOSE)


@pytest.mark.parametrize("case", DEFAULTS)
def test_without_an_offset_the_same_object_is_another_sample(case: str) -> None:
    """Another embedding of the anchor in a memory is a positive, also where the memory is the batch itself."""
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    x, labels = batch.embeddings, batch.labels
    value = DEFAULTS[case].loss().double()(x, labels, x, labels)
    expected, *_ = DEFAULTS[case].values_by_hand(Batch(x, labels, x.clone(), labels.clone()))
    torch.testing.assert_close(value.detach(), expected, rtol=1e-9, atol=1e-12)


# Pairs given by masks or by a relation of labels ----------------------------------------------------------------------


def same(labels: Tensor, reference_labels: Tensor) -> Tensor:
    return labels[:, None] == reference_labels


@pytest.mark.parametrize("case", EACH)
def test_masks_and_relations_that_say_the_same_as_labels(case: str) -> None:
    for name in ("unequal classes", "references around the batch", "references lack a class"):
        batch = EACH[case].suited(BATCHES[name])
        reference_labels = batch.labels if batch.reference_labels is None else batch.reference_labels
        positive = same(batch.labels, reference_labels)
        for pairs in ({"positive": positive}, {"positive": positive, "negative": ~positive}, {"relation": same}):
            loss = EACH[case].loss(tile_rows=4).double()
            given = value_and_gradients(
                lambda *batch, loss=loss, pairs=pairs: loss(*batch, **pairs), batch, list(loss.parameters())
            )
            torch.testing.assert_close(given, EACH[case].values(batch), **CLOSE)


WITHOUT_CLASSES = [name for name in DEFAULTS if "num_classes" not in DEFAULTS[name].arguments]


@pytest.mark.parametrize("case", [name for name in WITHOUT_CLASSES if not DEFAULTS[name].is_random])
def test_pairs_in_neither_mask_do_not_count(case: str) -> None:
    """A sample that is in no pair might as well not be there; but means over all anchors count it."""
    batch = BATCHES["unequal classes"]
    positive = same(batch.labels, batch.labels)
    in_a_pair = torch.ones(12, 12, dtype=torch.bool)
    in_a_pair[:, 4] = in_a_pair[4, :] = False
    others = torch.arange(12) != 4
    loss = DEFAULTS[case].loss()
    value = loss(batch.embeddings, positive=positive & in_a_pair, negative=~positive & in_a_pair)
    expected = loss(batch.embeddings[others], batch.labels[others])
    over_all_anchors = getattr(loss, "reduction", None) == "anchors"
    torch.testing.assert_close(value * (12 / 11 if over_all_anchors else 1), expected, **CLOSE)


# Memory grows with the tile -------------------------------------------------------------------------------------------


TILE, N = 32, 256


@pytest.mark.parametrize("case", EACH)
def test_no_tensor_is_larger_than_a_tile(case: str) -> None:
    x = torch.randn(N, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(N) // 4 % (12 if "num_classes" in EACH[case].arguments else N)
    loss = EACH[case].loss(tile_rows=TILE)
    for relation in (None, same) if case == "contrastive" else (None,):
        with _Largest() as seen:
            loss(x, labels, relation=relation).backward()
        assert 0 < seen.largest <= TILE * N


class _Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


# Random miners: a draw depends on seed, call and place alone ----------------------------------------------------------


BATCH = realistic_batch()


def test_a_later_call_draws_what_its_number_says() -> None:
    loss = TripletLoss(miner=DistanceWeightedMiner(seed=3))
    for call in (1, 2, 3):
        anchors = [
            miner_references.distance_weighted(anchor, seed=3, call=call)
            for anchor in references.anchors_of(Batch(*BATCH))
        ]
        torch.testing.assert_close(loss(*BATCH), references.triplet(anchors), rtol=1e-9, atol=0)


def test_nothing_is_counted_where_nothing_is_drawn() -> None:
    assert not list(MultiSimilarityLoss().buffers())
    assert not list(MarginLoss(miner=None).buffers())
