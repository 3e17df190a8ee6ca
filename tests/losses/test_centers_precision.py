"""Number types of losses of class centers: finite for finite input, float32 inside, and centers keep their type."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses import center_references as by_hand
from tests.losses.batches import Batch, realistic_batch
from tests.losses.center_cases import BATCHES, CASES, DEFAULTS
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal.losses import CenterContrastiveLoss
from vicinal.similarity import normalize

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("case", CASES)
def test_centers_in_half_precision(case: str) -> None:
    """They are a coarser input too, and get gradients of their own type."""
    for dtype in HALVES:
        x, labels, *_ = BATCHES["shuffled"].to(torch.float32)
        loss = CASES[case].loss(6, 5).to(dtype)
        got = value_and_gradients(loss, Batch(x, labels), list(loss.parameters()))
        coarse = CASES[case].loss(6, 5).to(dtype).float()
        expected = value_and_gradients(coarse, Batch(x, labels), list(coarse.parameters()))
        torch.testing.assert_close(got[:2], expected[:2], rtol=0, atol=0)
        assert_near([part.float() for part in got[2:]], expected[2:], torch.finfo(dtype).eps)
        assert all(part.dtype == dtype for part in (*got[2:], *loss.parameters()))


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_with_float64(case: str) -> None:
    batch = realistic_batch()
    single = CASES[case].values(batch.to(torch.float32), 20)
    assert all(tensor.dtype == torch.float32 for tensor in single)
    assert_near(single, CASES[case].values(batch, 20), 1e-5)


@pytest.mark.parametrize("length", [1e-2, 1e6])
@pytest.mark.parametrize("case", [name for name in DEFAULTS if not CASES[name].kind.uses_norms])
def test_short_and_long_centers(case: str, length: float) -> None:
    """As weight decay, or a large learning rate, may leave them."""
    batch, loss = realistic_batch(), CASES[case].loss(20, 32)
    value, by_x, *grad_centers = value_and_gradients(loss, batch.to(torch.float32), list(loss.parameters()))
    other = CASES[case].loss(20, 32)
    other.centers.data *= length
    got = value_and_gradients(other, batch.to(torch.float32), list(other.parameters()))
    assert_near(got, [value, by_x, *(part / length for part in grad_centers)], 1e-5)


@pytest.mark.parametrize("case", [name for name in DEFAULTS if not CASES[name].kind.uses_norms])
def test_the_gradient_of_very_short_centers_is_bounded(case: str) -> None:
    """It is that of centers of norm 1e-3, in both ways of computing it."""
    batch, loss = realistic_batch().to(torch.float32), CASES[case].loss(20, 32)
    with torch.no_grad():
        loss.centers.copy_(normalize(loss.centers) * 1e-3)
    _, _, *expected = value_and_gradients(loss, batch, list(loss.parameters()))
    with torch.no_grad():
        loss.centers.mul_(1e-4)
    _, _, *got = value_and_gradients(loss, batch, list(loss.parameters()))
    assert_near(got, expected, 1e-5)
    loss.centers.data.zero_()
    for part in value_and_gradients(loss, batch, list(loss.parameters()))[2:]:
        assert part.isfinite().all()
        assert part.abs().max() < 1e5


# A million classes ----------------------------------------------------------------------------------------------------


def ccl_in_float64(x: Tensor, labels: Tensor, loss: CenterContrastiveLoss) -> list[Tensor]:
    """By plain operations on the whole matrix."""
    centers, is_own = (
        loss.centers.detach().double().requires_grad_(),
        torch.arange(len(loss.centers)) == labels[:, None],
    )
    targets = torch.where(is_own, 1 - loss.label_smoothing, loss.label_smoothing / (len(centers) - 1)).double()

    def formula(x: Tensor, _: Tensor) -> Tensor:
        cosines = by_hand.unit(x) @ by_hand.unit(centers).T
        log_shares = (loss.scale * (cosines - loss.margin * is_own)).log_softmax(dim=1)
        return (-(targets * log_shares).sum(dim=1) - 2 * loss.center_weight * cosines[is_own]).mean()

    return value_and_gradients(formula, Batch(x.double(), labels), [centers])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"label_smoothing": 0.0, "center_weight": 0.0}, {"margin": 0.3, "center_weight": 2.0}]
)
def test_a_million_classes_in_float16(more: dict[str, float]) -> None:
    classes, dim = 1_000_000, 16
    torch.manual_seed(0)
    loss = CenterContrastiveLoss(classes, dim, **more)
    x, labels = torch.randn(8, dim).half(), torch.tensor([0, classes - 1, *torch.randint(classes, (6,)).tolist()])
    with torch.autocast("cpu", dtype=torch.float16):
        value, by_x, grad_centers = value_and_gradients(loss, Batch(x, labels), [loss.centers])
    assert by_x.dtype == torch.float16
    assert grad_centers.dtype == loss.centers.dtype == torch.float32
    expected = ccl_in_float64(x, labels, loss)
    assert_near([value, grad_centers], expected[::2], 1e-5)
    assert_near([by_x], [expected[1]], 1e-3)
