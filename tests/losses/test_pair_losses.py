"""Guarantees of all pair losses: edges, invariance, pairs given by masks, memory of a tile, random miners."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses import miner_references, references
from tests.losses.batches import Batch, nasty_batches, realistic_batch
from tests.losses.cases import CASES, DEFAULTS, EACH, MINERS
from tests.losses.gradients import value_and_gradients
from vicinal.losses import ContrastiveLoss, HistogramLoss, MarginLoss, PairLoss, TripletLoss
from vicinal.mining import DistanceWeightedMiner

# Batches with little in them ------------------------------------------------------------------------------------------


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
PERFECT = ["contrastive", "ContrastiveLoss(reduction=pairs)", "multi-similarity", "LiftedStructureLoss(margin=-2.0)"]
PERFECT += [f"triplet, {name}" for name in ("all", "semi-hard", "hard", "distance-weighted")] + ["margin", "histogram"]
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
    """Whatever pairs a miner leaves, none included, the loss is finite and the same in tiles; one batch for each."""
    for number, (name, (miner, _)) in enumerate(MINERS.items(), list(DEFAULTS).index(case)):
        batch_name = NASTY_FOR_MINERS[number % len(NASTY_FOR_MINERS)]
        arguments = {**DEFAULTS[case].arguments, "miner": miner}
        batch = DEFAULTS[case].suited(BATCHES[batch_name])
        value = DEFAULTS[case].kind(**arguments)(*batch)
        assert value.isfinite(), f"{name}, {batch_name}"
        tiled = DEFAULTS[case].kind(**arguments, tile_rows=1)(*batch)
        torch.testing.assert_close(tiled, value, rtol=1e-10, atol=1e-7)


# Invariance -----------------------------------------------------------------------------------------------------------


CLOSE = {"rtol": 1e-10, "atol": 1e-13}
NOT_RANDOM = [name for name, case in EACH.items() if not case.is_random]  # a draw belongs to a place in the batch


def order_of(labels: Tensor) -> Tensor:
    return torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", NOT_RANDOM)
def test_permuting_the_batch_permutes_the_gradient(case: str) -> None:
    for name in ("unequal classes", "many classes", "singletons", "opposites"):
        batch = EACH[case].suited(BATCHES[name])
        order = order_of(batch.labels)
        value, gradient, *others = EACH[case].values(batch)
        permuted = EACH[case].values(Batch(batch.embeddings[order], batch.labels[order]))
        torch.testing.assert_close(permuted, [value, gradient[order], *others], **CLOSE)


@pytest.mark.parametrize("case", NOT_RANDOM)
def test_permuting_the_references_permutes_their_gradient(case: str) -> None:
    batch = EACH[case].suited(BATCHES["references beside the batch"])
    order = order_of(batch.reference_labels)
    value, gradient, by_references, *others = EACH[case].values(batch)
    permuted = batch._replace(references=batch.references[order], reference_labels=batch.reference_labels[order])
    expected = [value, gradient, by_references[order], *others]
    torch.testing.assert_close(EACH[case].values(permuted), expected, **CLOSE)


@pytest.mark.parametrize("case", [name for name in EACH if "num_classes" not in EACH[name].arguments])
def test_names_of_classes_do_not_matter(case: str) -> None:
    batch = BATCHES["shuffled"]
    renamed = batch._replace(labels=torch.tensor([40, -3, 2**50, 0])[batch.labels])
    torch.testing.assert_close(EACH[case].values(renamed), EACH[case].values(batch), rtol=0, atol=0)


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


@pytest.mark.parametrize("case", [name for name, case in DEFAULTS.items() if case.kind is not HistogramLoss])
def test_sums_of_pieces_against_the_whole_batch_add_up(case: str) -> None:
    """Each piece of the batch with its offset in the whole of it; random miners draw the same in every piece."""
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    x, labels = batch.embeddings.clone().requires_grad_(), batch.labels
    pieces = [
        DEFAULTS[case].loss(reduction="sum").double()(x[start:stop], labels[start:stop], x, labels, start)
        for start, stop in [(0, 4), (4, 9), (9, 12)]
    ]
    whole = DEFAULTS[case].loss(reduction="sum").double()(x, labels)
    torch.testing.assert_close(sum(pieces), whole, **CLOSE)
    expected = torch.autograd.grad(whole, x)
    torch.testing.assert_close(torch.autograd.grad(sum(pieces), x), expected, **CLOSE)


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


@pytest.mark.parametrize("case", WITHOUT_CLASSES)
def test_masks_need_no_labels(case: str) -> None:
    batch = BATCHES["unequal classes"]
    value = DEFAULTS[case].loss()(batch.embeddings, positive=same(batch.labels, batch.labels))
    torch.testing.assert_close(value, DEFAULTS[case].loss()(batch.embeddings, batch.labels), **CLOSE)


@pytest.mark.parametrize("case", DEFAULTS)
def test_an_anchor_is_never_a_pair_of_itself_whatever_the_masks_say(case: str) -> None:
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    positive = same(batch.labels, batch.labels)
    diagonal = torch.eye(12, dtype=torch.bool)
    value = DEFAULTS[case].loss()(*batch, positive=positive & ~diagonal, negative=~positive | diagonal)
    torch.testing.assert_close(value, DEFAULTS[case].loss()(*batch), **CLOSE)


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


TILE, N = 16, 512


def many() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), torch.arange(N) // 4


@pytest.mark.parametrize("case", [*DEFAULTS, *(f"{miner} miner" for miner in MINERS), "relation"])
def test_no_tensor_is_larger_than_a_tile(case: str) -> None:
    x, labels = many()
    if case in DEFAULTS:
        labels = labels % 12 if "num_classes" in DEFAULTS[case].arguments else labels
        loss = DEFAULTS[case].loss(tile_rows=TILE)
    else:
        loss = ContrastiveLoss(miner=MINERS.get(case.removesuffix(" miner"), (None,))[0], tile_rows=TILE)
    with _Largest() as seen:
        loss(x, labels, **({"relation": same} if case == "relation" else {})).backward()
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


def test_both_walks_of_the_histogram_loss_see_the_same_draws() -> None:
    """It goes over the rows twice; were the draws others, its gradient would be that of other pairs."""
    x = BATCH.embeddings[:8, :4].clone().requires_grad_()
    labels = BATCH.labels[:8]
    assert torch.autograd.gradcheck(lambda x: HistogramLoss(miner=DistanceWeightedMiner(num_samples=2))(x, labels), x)
