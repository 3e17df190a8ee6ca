"""Partial FC: a batch against its own classes and a sample of the others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch
from tests.losses.center_cases import CASES, SHARDED
from tests.losses.gradients import value_and_gradients
from vicinal.losses import NormSoftmaxLoss
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.similarity.pair_source import PairSource

CLASSES, DIM = 40, 8
DEFAULTS = [name for name in SHARDED if ", " not in name]


def batch_of(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, DIM, generator=generator, dtype=torch.float64)
    return Batch(x, torch.tensor([3, 39, 3, 0, 17, 21]))


def made(case: str, **more: Any) -> CenterSoftmaxLoss:
    return CASES[case].loss(CLASSES, DIM, **{"sample_rate": 0.25, **more}).double()


def sampled(loss: CenterSoftmaxLoss, batch: Batch) -> Tensor:
    """The classes of the next call, read off the gradient."""
    _, _, grad_centers = value_and_gradients(loss, batch, [loss.centers])
    return grad_centers.any(dim=1).nonzero()[:, 0]


@pytest.mark.parametrize("case", SHARDED)
def test_value_and_gradients_are_those_of_the_sample(case: str) -> None:
    batch, loss = batch_of(), made(case)
    value, by_x, grad_centers = value_and_gradients(loss, batch, [loss.centers])
    ids = made(case)._sample_classes(PairSource.from_batch(*batch[:2]))
    assert len(ids) == 10
    assert set(batch.labels.tolist()) <= set(ids.tolist())
    smaller = CASES[case].loss(10, DIM).double()
    smaller.centers.data = loss.centers.detach()[ids].clone()
    of_sample = batch._replace(labels=torch.searchsorted(ids, batch.labels))
    expected = value_and_gradients(smaller, of_sample, [smaller.centers])
    torch.testing.assert_close([value, by_x, grad_centers[ids]], expected, rtol=1e-10, atol=1e-12)
    left_out = torch.ones(CLASSES, dtype=torch.bool).index_fill(0, ids, False)
    assert not grad_centers[left_out].any()


@pytest.mark.parametrize("case", DEFAULTS)
def test_all_of_them_are_all(case: str) -> None:
    """A fraction that rounds to all classes, and batches of as many labels as there are classes."""
    batch = batch_of()
    expected = CASES[case].values(batch, CLASSES)
    loss = made(case, sample_rate=0.999)
    torch.testing.assert_close(value_and_gradients(loss, batch, [loss.centers]), expected, rtol=1e-10, atol=1e-12)
    batch = Batch(torch.randn(50, DIM, dtype=torch.float64), torch.arange(50) % CLASSES)
    loss = made(case, sample_rate=1e-9)
    got = value_and_gradients(loss, batch, [loss.centers])
    torch.testing.assert_close(got, CASES[case].values(batch, CLASSES), rtol=1e-10, atol=1e-12)


def test_draws_change_from_call_to_call_and_are_a_function_of_the_seed() -> None:
    draws = [[sampled(loss, batch_of()).tolist() for _ in range(5)] for loss in (made("NormSoftmax") for _ in range(2))]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws[0]}) == 5
    assert sampled(made("NormSoftmax", seed=1), batch_of()).tolist() != draws[0][0]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sampled(loss := made("NormSoftmax"), batch_of())
    assert torch.equal(torch.get_rng_state(), before)
    assert int(loss.calls) == 1


def test_others_are_drawn_evenly() -> None:
    loss, batch = NormSoftmaxLoss(CLASSES, DIM, sample_rate=0.25).double(), PairSource.from_batch(*batch_of()[:2])
    counts = torch.zeros(CLASSES)
    for _ in range(500):
        counts[loss._sample_classes(batch)] += 1
        loss.calls += 1
    own = torch.tensor([3, 39, 0, 17, 21])
    assert (counts[own] == 500).all()
    others = counts[torch.ones(CLASSES, dtype=torch.bool).index_fill(0, own, False)]
    # 5 of 35 in each call: 71 on average, with a standard deviation of 8.
    assert others.min() > 40
    assert others.max() < 105


def test_a_continued_run_draws_what_an_uninterrupted_one_would_have() -> None:
    loss = made("CCL")
    sampled(loss, batch_of())
    other = made("CCL")
    other.load_state_dict(loss.state_dict())
    assert [sampled(loss, batch_of()).tolist() for _ in range(3)] == [
        sampled(other, batch_of()).tolist() for _ in range(3)
    ]
    assert "calls" not in NormSoftmaxLoss(3, 4).state_dict()


def test_a_second_pass_has_the_same_draw() -> None:
    loss, batch = made("CCL, margin"), batch_of()
    value = loss(*batch)
    first = torch.autograd.grad(value, loss.centers, retain_graph=True)[0].clone()
    loss(*batch)
    torch.testing.assert_close(torch.autograd.grad(value, loss.centers)[0], first, rtol=1e-10, atol=1e-13)
