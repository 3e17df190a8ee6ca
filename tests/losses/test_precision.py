"""Number types: finite for every finite input, at least float32 inside, and float32 good to five digits."""

from __future__ import annotations

import pytest
import torch

from tests.losses.batches import nasty_batches, realistic_batch
from tests.losses.cases import DEFAULTS, PATHS
from tests.losses.gradients import assert_near

BATCHES = nasty_batches()


@pytest.mark.parametrize("scales", [pytest.param((1e-3, 1e4), marks=pytest.mark.slow), (1e-30, 1.0, 3e38)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", DEFAULTS)
def test_finite_for_every_finite_input(case: str, dtype: torch.dtype, scales: tuple[float, ...]) -> None:
    autocast = torch.float16 if dtype == torch.float16 else torch.bfloat16
    for name, batch in BATCHES.items():
        batch = DEFAULTS[case].suited(batch)
        for scale in scales:
            length = min(scale, torch.finfo(dtype).max)
            x = (batch.embeddings / batch.embeddings.abs().max() * length).to(dtype).requires_grad_()
            references = None if batch.references is None else batch.references.to(dtype)
            with torch.autocast("cpu", dtype=autocast):
                value = DEFAULTS[case].loss()(*batch._replace(embeddings=x, references=references))
            assert value.dtype == torch.float32
            assert value.isfinite(), f"{name} x {scale}"
            (gradient,) = torch.autograd.grad(value, x)
            assert gradient.dtype == dtype
            assert gradient.isfinite().all(), f"{name} x {scale}"


@pytest.mark.parametrize("case", DEFAULTS)
def test_half_precision_is_only_a_coarser_input(case: str) -> None:
    """The value is that of the rounded embeddings in float32: nothing inside is computed in fewer digits."""
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    for dtype in (torch.bfloat16, torch.float16):
        half = batch.to(dtype)
        with torch.autocast("cpu", dtype=dtype):
            value = DEFAULTS[case].loss()(*half)
        torch.testing.assert_close(value, DEFAULTS[case].loss()(*half.to(torch.float32)), rtol=0, atol=0)


@pytest.mark.parametrize("case", DEFAULTS)
def test_parameters_keep_their_type(case: str) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        loss = DEFAULTS[case].loss()
        before = {name: tensor.dtype for name, tensor in loss.state_dict().items()}
        x = DEFAULTS[case].suited(BATCHES["unequal classes"]).to(dtype)
        loss(*x._replace(embeddings=x.embeddings.clone().requires_grad_())).backward()
        assert {name: tensor.dtype for name, tensor in loss.state_dict().items()} == before
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in loss.parameters())


@pytest.mark.parametrize("case", PATHS)
def test_float32_agrees_with_float64(case: str) -> None:
    batch = realistic_batch()
    if "num_classes" in PATHS[case].arguments:
        batch = batch._replace(labels=batch.labels % 12)
    double = PATHS[case].values(batch)
    for tile_rows in (None, 7):
        single = PATHS[case].values(batch.to(torch.float32), tile_rows=tile_rows)
        assert all(tensor.dtype == torch.float32 for tensor in single)
        assert_near(single, double, 1e-5)
