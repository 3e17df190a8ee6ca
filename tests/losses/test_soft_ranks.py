"""Smooth and exact counts of the similarities above, against all differences at once, differentiated by autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.losses.allocations import largest_allocation
from vicinal.losses import BlackboxAPLoss, SupAPLoss
from vicinal.losses.soft_ranks import count_above, count_positives_above, count_thresholds_above
from vicinal.similarity import Rows

STEPS: dict[str, dict[str, float]] = {
    "sigmoid": {"temperature": 0.1},
    "sharp": {"temperature": 0.01},
    "bound": {"temperature": 0.1, "linear_from": 0.3, "slope": 7.0},
    "flat bound": {"temperature": 0.1, "linear_from": 0.0, "slope": 0.0},
}
ROWS, POINTS, OTHERS = 6, 5, 9


def similarities(columns: int, seed: int) -> Tensor:
    return torch.rand(ROWS, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def some_points() -> Tensor:
    """In every row another number of them, in no order; one row has none."""
    points = similarities(POINTS, 0)
    absent = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
    points[:5][absent.bool()] = math.inf
    return points


def some_others() -> Tensor:
    others = similarities(OTHERS, 1)
    others[0, 3] = others[2, :8] = others[4, :] = -math.inf
    return others


def all_at_once(points: Tensor, others: Tensor, temperature: float, linear_from: float = math.inf, slope: float = 0.0):
    """The definition, in [rows, p, q]; SupAP's t is the difference."""
    t = others[:, None, :] - points[:, :, None]
    steps = torch.sigmoid(t / temperature) if temperature else (t >= 0).to(t.dtype)
    if linear_from < math.inf:
        there = 1 / (1 + math.exp(-linear_from / temperature)) + 0.5
        steps = torch.where(t >= 0, steps + 0.5, steps)
        steps = torch.where(t > linear_from, slope * (t - linear_from) + there, steps)
    is_pair = (points[:, :, None] < math.inf) & (others[:, None, :] > -math.inf)
    return torch.where(is_pair, steps, 0.0).sum(dim=2)


def gradients(function, points: Tensor, others: Tensor) -> list[Tensor]:
    """Of a sum in which every point has another weight."""
    leaves = [points.clone().requires_grad_(), others.clone().requires_grad_()]
    weights = torch.linspace(-1, 2, points.numel(), dtype=points.dtype).view(points.shape)
    gradients = torch.autograd.grad((weights * function(*leaves)).sum(), leaves)
    return [gradient.nan_to_num(0.0) for gradient in gradients]  # of the definition, at infinity less infinity


@pytest.mark.parametrize("step", STEPS)
def test_sum_of_steps_of_all_differences(step: str) -> None:
    points, others = some_points(), some_others()
    got = count_above(points, others, **STEPS[step])
    torch.testing.assert_close(got, all_at_once(points, others, **STEPS[step]), rtol=1e-12, atol=1e-14)
    by_hand = gradients(lambda p, q: all_at_once(p, q, **STEPS[step]), points, others)
    ours = gradients(lambda p, q: count_above(p, q, **STEPS[step]), points, others)
    assert by_hand[0].any() or step == "flat bound"
    torch.testing.assert_close(ours, by_hand, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", STEPS)
def test_padding_is_not_counted_and_has_no_gradient(step: str, dtype: torch.dtype) -> None:
    """Exactly, so that padding has no weight."""
    points, others = some_points().to(dtype), some_others().to(dtype)
    assert not count_above(points, others, **STEPS[step])[points == math.inf].any()
    assert not count_above(points[4:5], others[4:5], **STEPS[step]).any()
    by_points, by_others = gradients(lambda p, q: count_above(p, q, **STEPS[step]), points, others)
    assert not by_points[points == math.inf].any()
    assert not by_others[others == -math.inf].any()


def test_exact_steps_count_ties_and_have_no_gradient() -> None:
    points, others = (some_points() * 4).round() / 4, (some_others() * 4).round() / 4
    expected = [
        [float(sum(q >= p for q in row if q > -math.inf)) if p < math.inf else 0.0 for p in ps]
        for ps, row in zip(points.tolist(), others.tolist(), strict=True)
    ]
    assert count_above(points, others, temperature=0).tolist() == expected
    below = [
        [float(sum(p > q for p in ps if p < math.inf)) for q in row]
        for ps, row in zip(points.tolist(), others.tolist(), strict=True)
    ]
    assert count_thresholds_above(points, others).tolist() == below
    leaf = torch.zeros(1, 1, requires_grad=True)
    assert torch.autograd.grad(count_above(leaf, torch.ones(1, 1), temperature=0) + leaf, leaf)[0] == 1


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_positives_above_leave_each_itself_out(temperature: float) -> None:
    positives = some_points()
    positives[0, 1] = positives[0, 3]  # a tie
    rows = Rows(positives, some_others(), None, torch.arange(ROWS), 8)
    expected = torch.zeros_like(positives)
    for i in range(ROWS):
        for x in range(POINTS):
            for y in range(POINTS):
                if x != y and positives[i, x] < math.inf and positives[i, y] < math.inf:
                    t = positives[i, y] - positives[i, x]
                    expected[i, x] += torch.sigmoid(t / temperature) if temperature else float(t >= 0)
    torch.testing.assert_close(count_positives_above(rows, temperature), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_many_points_need_no_more_memory_than_one() -> None:
    points, others = (torch.rand(32, n, dtype=torch.float64) for n in (500, 2000))

    def forward_and_backward() -> None:
        leaves = points.clone().requires_grad_(), others.clone().requires_grad_()
        count_above(*leaves, temperature=0.01).sum().backward()
        count_above(*leaves, temperature=0)
        count_thresholds_above(points, others)

    assert largest_allocation(forward_and_backward) <= others.nbytes
    dense = torch.full((32, 2000), math.inf, dtype=torch.float64).index_copy(1, torch.arange(0, 2000, 4), points)
    for step in STEPS.values():
        ours = count_above(dense, others, **step)[:, ::4]
        torch.testing.assert_close(ours, all_at_once(points, others, **step), rtol=1e-4, atol=1e-4)


def test_no_point_at_all() -> None:
    leaf = torch.rand(2, 4, requires_grad=True)
    count = count_above(torch.full((2, 1), math.inf), leaf, temperature=0.1)
    assert not count.any()
    assert not torch.autograd.grad(count.sum(), leaf)[0].any()


def test_far_apart_is_exactly_nothing_rather_than_denormal() -> None:
    """Processors are many times slower with denormal numbers, and a rank does not have the digits for them."""
    points = torch.zeros(1, 1)
    others = torch.linspace(-2, 2, 4001)[None]
    counts = [count_above(points, other, temperature=0.01).item() for other in others.split(1, dim=1)]
    leaf = others.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(count_above(points, leaf, temperature=0.01).sum(), leaf)
    for numbers in (torch.tensor(counts), slopes):
        assert not ((numbers > 0) & (numbers < 1e-16)).any()
        assert numbers[numbers > 0].min() < 1e-8  # and where it matters it is there
    assert counts[0] == 0
    assert counts[-1] == 1


def test_ties_do_not_depend_on_rounding() -> None:
    """The similarities of one pair of vectors differ by rounding from tile to tile; as ties they must not."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(8, 7, generator=generator)[torch.randint(0, 8, (37,), generator=generator)]
    labels = (x[:, 0] > 0).long()
    for kind in (SupAPLoss, BlackboxAPLoss):
        for tile_rows in (None, 1, 3):
            value = kind(tile_rows=tile_rows)(x, labels)
            torch.testing.assert_close(value, kind()(x.double(), labels).float(), rtol=1e-5, atol=0)
