"""The compiled loops of a CPU against PyTorch operations on all differences."""

import math

import pytest
import torch
from torch import Tensor

from vicinal.losses import rank_loops, soft_ranks

STEPS = {
    "exact": (0.0, math.inf, 0.0),
    "sharp": (0.01, math.inf, 0.0),
    "smooth": (0.5, math.inf, 0.0),
    "almost exact": (1e-30, math.inf, 0.0),
    "bound": (0.01, 0.05, 100.0),
    "flat bound": (0.1, 0.0, 0.0),
}
FEW, MANY = (5, 70), (33, 3000)


def ragged(columns: int, padding: float, seed: int) -> Tensor:
    """Similarities of six rows, of which one is all padding and one has none."""
    generator = torch.Generator().manual_seed(seed)
    values = 0.3 * torch.randn(6, columns, generator=generator).clamp(-3, 3)
    values[torch.rand(6, columns, generator=generator) < torch.linspace(0, 1, 6)[:, None]] = padding
    return values


def by_pytorch(name: str, *arguments: object) -> object:
    """The result of PyTorch operations, in float64."""
    exact = (x.double() if isinstance(x, Tensor) else x for x in arguments)
    return getattr(soft_ranks, f"_{name}")._init_fn(*exact)


@pytest.mark.parametrize("size", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("step", STEPS)
def test_counts_and_gradients_are_those_of_pytorch(step: str, size: tuple[int, int]) -> None:
    thresholds, values = ragged(size[0], math.inf, 0), ragged(size[1], -math.inf, 1)
    upstream = torch.randn(6, size[0], generator=torch.Generator().manual_seed(2))
    counts = rank_loops.count_above(thresholds, values, *STEPS[step])
    expected = by_pytorch("count_above", thresholds, values, *STEPS[step])
    torch.testing.assert_close(counts.double(), expected, rtol=2e-5, atol=1e-9)
    assert not counts[thresholds == math.inf].any()
    if STEPS[step][0] < 1e-3:
        return
    gradients = rank_loops.count_above_backward(upstream, thresholds, values, *STEPS[step])
    expected_gradients = by_pytorch("count_above_backward", upstream, thresholds, values, *STEPS[step])
    for got, expected in zip(gradients, expected_gradients, strict=True):
        assert (got.double() - expected).norm() <= 1e-5 * expected.norm()
    assert not gradients[0][thresholds == math.inf].any()
    assert not gradients[1][values == -math.inf].any()


def test_thresholds_above_are_those_of_pytorch() -> None:
    thresholds, values = ragged(9, math.inf, 0), ragged(50, -math.inf, 1)
    values[:, :9] = thresholds.where(thresholds < math.inf, 0.0)  # ties
    tolerance = 16 * torch.finfo(torch.float32).eps
    expected = (thresholds.where(thresholds < math.inf, -math.inf)[:, :, None] > values[:, None] + tolerance).sum(dim=1)
    assert torch.equal(rank_loops.count_thresholds_above(thresholds, values, tolerance), expected.float())


def test_counts_far_below_keep_their_digits() -> None:
    """A rank is 1 and a small sum; that of a nearly perfect ranking must not be noise."""
    thresholds = torch.linspace(0.6, 0.9, 40)[None]
    values = 0.1 * torch.randn(1, 2000, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    counts = rank_loops.count_above(thresholds, values, *STEPS["sharp"])
    expected = by_pytorch("count_above", thresholds, values, *STEPS["sharp"])
    is_felt = expected > 1e-9
    assert is_felt.any()
    assert expected[is_felt].min() < 1e-7
    torch.testing.assert_close(counts.double()[is_felt], expected[is_felt], rtol=1e-3, atol=0)


def test_threads_divide_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds, values = ragged(7, math.inf, 0), ragged(90, -math.inf, 1)
    expected = rank_loops.count_above(thresholds, values, *STEPS["sharp"])
    monkeypatch.setattr(rank_loops, "MIN_PAIRS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert torch.equal(rank_loops.count_above(thresholds, values, *STEPS["sharp"]), expected)


def test_broken_similarities_end() -> None:
    """NaN and infinities on either side: any result, but no endless loop and no memory of others."""
    for broken in (math.nan, math.inf, -math.inf):
        thresholds, values = torch.full((2, 40), broken), torch.full((2, 200), broken)
        thresholds[1, ::2], values[1, ::2] = 0.1, 0.2
        for step in STEPS.values():
            rank_loops.count_above(thresholds, values, *step)
            rank_loops.count_above_backward(torch.ones(2, 40), thresholds, values, *step)
