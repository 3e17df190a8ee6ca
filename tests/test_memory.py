"""The memory of past batches against a list of past batches, and its state."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.refusals import refused_call
from vicinal.losses import (
    ContrastiveLoss,
    HistogramLoss,
    LiftedStructureLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NTXentLoss,
    SupConLoss,
    TripletLoss,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner
from vicinal.similarity import PairSource
from vicinal.utils.errors import InputError

LOSSES: dict[str, Loss] = {
    "violating": ContrastiveLoss(),
    "contributing": LiftedStructureLoss(reduction="contributing"),
    "miner": MultiSimilarityLoss(),
    "tiles": NTXentLoss(tile_rows=2),
    "triplets": TripletLoss(reduction="violating"),
    "two walks": HistogramLoss(bins=20),
    "random miner": MarginLoss().double(),
    "another": SupConLoss(miner=DistanceWeightedMiner(num_samples=2, seed=3)),
    "sum": 0.5 * ContrastiveLoss() + 2 * MarginLoss(miner=DistanceWeightedMiner(seed=1)).double() + NTXentLoss(),
}


def batches(count: int, n: int = 6, d: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, d, generator=generator, dtype=torch.float64), torch.randint(0, 4, (n,), generator=generator))
        for _ in range(count)
    ]


def value_and_gradient(loss, x: Tensor, *more, **named) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, *more, **named)
    return value.detach(), torch.autograd.grad(value, x)[0]


def contrastive_by_hand(x: Tensor, labels: Tensor, past: list[tuple[Tensor, int]]) -> Tensor:
    """Each half a mean over its pairs, of the batch with itself and with the list; margins 0.9 and 0.6."""
    x = x / x.norm(dim=1, keepdim=True)
    own = list(zip(x, labels.tolist(), strict=True))
    hinges: dict[bool, list[Tensor]] = {True: [], False: []}
    for i, (anchor, label) in enumerate(own):
        others = [pair for j, pair in enumerate(own) if j != i] + past
        for other, its_label in others:
            s = anchor @ other
            hinges[label == its_label].append((0.9 - s if label == its_label else s - 0.6).relu())
    return sum((torch.stack(half).mean() for half in hinges.values() if half), x.sum() * 0)


@pytest.mark.parametrize(("size", "warmup"), [(1, 0), (4, 2), (15, 0), (1000, 2)])
def test_is_a_loss_against_a_list_of_past_embeddings(size: int, warmup: int) -> None:
    loss = CrossBatchMemory(ContrastiveLoss(reduction="pairs"), size, warmup)
    past: list[tuple[Tensor, int]] = []
    for step, (x, labels) in enumerate(batches(6)):
        seen = past if step >= warmup else []
        expected = value_and_gradient(contrastive_by_hand, x, labels, seen)
        torch.testing.assert_close(value_and_gradient(loss, x, labels), expected, rtol=1e-10, atol=1e-12)
        past = [*past, *zip(x / x.norm(dim=1, keepdim=True), labels.tolist(), strict=True)][-size:]
        torch.testing.assert_close(loss.embeddings, torch.stack([vector for vector, _ in past]))
        assert loss.labels.tolist() == [label for _, label in past]


@pytest.mark.parametrize("name", LOSSES)
def test_any_loss_sees_the_memory_as_references(name: str) -> None:
    inner = copy.deepcopy(LOSSES[name])
    loss = CrossBatchMemory(copy.deepcopy(inner), 10)
    past, past_labels = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for x, labels in batches(4):
        known = torch.cat([past_labels, labels])
        # A function of its own for each step: batch and references are one tensor, so that both sides get gradients.
        expected = value_and_gradient(_beside(inner, past, known), x, labels)
        torch.testing.assert_close(value_and_gradient(loss, x, labels), expected, rtol=1e-10, atol=1e-12)
        past, past_labels = torch.cat([past, x])[-10:], known[-10:]
    assert list(loss.parts(PairSource.from_batch(x, labels))) == list(inner.parts(PairSource.from_batch(x, labels)))


def _beside(loss: Loss, past: Tensor, known: Tensor):
    return lambda x, labels: loss(x, labels, torch.cat([past, x]), known, len(past))


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8), size=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_holds_the_last_entries_whatever_the_batches(sizes: list[int], size: int) -> None:
    """Also of batches larger than the memory, and of empty ones."""
    loss = CrossBatchMemory(ContrastiveLoss(), size)
    vectors = F.normalize(torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(0)))
    for x, labels in zip(vectors.split(sizes), torch.arange(sum(sizes)).split(sizes), strict=True):
        loss(x, labels)
    assert loss.labels.tolist() == list(range(sum(sizes)))[-size:]
    torch.testing.assert_close(loss.embeddings, vectors[-size:])


def test_what_is_stored_carries_no_gradient_and_holds_no_graph() -> None:
    loss = CrossBatchMemory(MultiSimilarityLoss(), 100)
    (x, labels), (other, other_labels) = batches(2)
    x, other = x.requires_grad_(), other.requires_grad_()
    loss(x, labels)
    assert loss.embeddings.grad_fn is None
    assert not loss.embeddings.requires_grad
    loss(other, other_labels).backward()
    assert x.grad is None
    assert other.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_stored_in_float32(dtype: torch.dtype) -> None:
    loss = CrossBatchMemory(MultiSimilarityLoss(), 10)
    plain = CrossBatchMemory(MultiSimilarityLoss(), 10)
    for x, labels in batches(3):
        x = x.to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss.to(dtype)(x, labels)
        torch.testing.assert_close(value, plain(x.float(), labels), rtol=0, atol=0)
        assert loss.embeddings.dtype == torch.float32
        torch.testing.assert_close(loss.embeddings.norm(dim=1), torch.ones(len(loss.embeddings)))


def test_goes_on_when_embeddings_become_more_precise() -> None:
    loss = CrossBatchMemory(ContrastiveLoss(), 12)
    (x, labels), (other, other_labels) = batches(2)
    loss(x.float(), labels)
    assert loss(other, other_labels).dtype == torch.float64
    assert loss.embeddings.dtype == torch.float64


def test_evaluation_stores_nothing() -> None:
    loss = CrossBatchMemory(ContrastiveLoss(), 12)
    (x, labels), (other, other_labels) = batches(2)
    loss(x, labels)
    before = loss.embeddings.clone()
    evaluated = loss.eval()(other, other_labels)
    assert torch.equal(loss.embeddings, before)
    assert evaluated.item() == loss.train()(other, other_labels).item()
    assert len(loss.embeddings) == 12


def test_a_relation_is_kept_with_its_labels() -> None:
    def share_a_tag(tags: Tensor, others: Tensor) -> Tensor:
        return (tags[:, None] * others[None]).any(dim=-1)

    loss = CrossBatchMemory(ContrastiveLoss(reduction="pairs"), 20)
    generator = torch.Generator().manual_seed(0)
    past, past_tags = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, 3, dtype=torch.int64)
    for x, _ in batches(3):
        tags = torch.randint(0, 2, (len(x), 3), generator=generator)
        references, known = torch.cat([past, x]), torch.cat([past_tags, tags])
        expected = loss.loss(x, tags, references, known, len(past), relation=share_a_tag)
        torch.testing.assert_close(loss(x, tags, relation=share_a_tag), expected)
        past, past_tags = references, known
    assert loss.labels.shape == (18, 3)


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("name", ["miner", "random miner", "sum"])
def test_a_state_in_the_middle_of_a_run_continues_it(name: str, stop: int, tmp_path: Path) -> None:
    def fresh() -> CrossBatchMemory:
        return CrossBatchMemory(copy.deepcopy(LOSSES[name]), 8, warmup=2)

    straight, first, second = fresh(), fresh(), fresh()
    steps = batches(6)
    for x, labels in steps[:stop]:
        straight(x, labels)
        first(x, labels)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    for x, labels in steps[stop:]:
        expected = value_and_gradient(straight, x, labels)
        torch.testing.assert_close(value_and_gradient(second, x, labels), expected, rtol=0, atol=0)


def test_a_state_is_a_snapshot_and_its_copy_independent() -> None:
    loss = CrossBatchMemory(ContrastiveLoss(), 8)
    (x, labels), (other, other_labels) = batches(2)
    loss(x, labels)
    state, copied, stored = loss.state_dict(), copy.deepcopy(loss), loss.embeddings.clone()
    loss(other, other_labels)
    again = CrossBatchMemory(ContrastiveLoss(), 8)
    again.load_state_dict(state)
    for kept in (again, copied):
        torch.testing.assert_close(kept.embeddings, stored, rtol=0, atol=0)


def test_states_that_do_not_fit() -> None:
    loss = CrossBatchMemory(ContrastiveLoss(), 8)
    with pytest.raises(InputError, match="a state of size = 9 does not fit size = 8"):
        loss.load_state_dict(CrossBatchMemory(ContrastiveLoss(), 9).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        loss.load_state_dict(ContrastiveLoss().state_dict())


X, LABELS = torch.eye(4), torch.tensor([0, 0, 1, 1])
MASK = LABELS[:, None] == LABELS


def test_bad_input() -> None:
    for arguments, named, message in (
        ((X, LABELS, X, LABELS), {}, "the memory is the references"),
        ((X, LABELS, X, LABELS, 0), {}, "the memory is the references"),
        ((X,), {"positive": MASK}, "masks do not cover pairs with the memory"),
        ((torch.eye(5)[:4], LABELS), {}, r"embeddings \[n, 5\] do not fit those in the memory, \[n, 4\]"),
        ((X, LABELS[:, None]), {"relation": lambda a, b: a == b.T}, r"labels \[n, 1\] do not fit those in the"),
        ((X, LABELS[:3]), {}, r"labels must be int \[4\]"),
    ):
        loss = CrossBatchMemory(ContrastiveLoss(), 8)
        loss(X, LABELS)
        refused_call(message, loss, *arguments, **named)
        assert len(loss.embeddings) == 4
