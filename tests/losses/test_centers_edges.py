"""Losses of class centers on batches with little in them, broken ones, and twice over the same graph."""

from __future__ import annotations

import pytest
import torch

from tests.losses.batches import Batch
from tests.losses.center_cases import BATCHES, CASES
from tests.losses.gradients import value_and_gradients
from vicinal.losses import ClusterContrastLoss

CLOSE = {"rtol": 1e-10, "atol": 1e-13}
LEARNED = [name for name, case in CASES.items() if case.kind is not ClusterContrastLoss]
SHUFFLED = BATCHES["shuffled"]


@pytest.mark.parametrize("case", CASES)
def test_zero_and_equal_vectors(case: str) -> None:
    """Embeddings and centers both, and each with itself: finite."""
    for name in ("zero vector", "duplicates", "collapsed"):
        x, labels, *_ = BATCHES[name].to(torch.float32)
        for centers in (torch.zeros(3, 5), torch.ones(3, 5), x[1:4], -x[1:4]):
            loss = CASES[case].loss(3, 5)
            loss.set_centers(torch.arange(3), centers)
            if not centers.any():
                loss.centers.data.zero_()
            for tensor in value_and_gradients(loss, Batch(x, labels), list(loss.parameters())):
                assert tensor.isfinite().all(), name


@pytest.mark.parametrize("case", [name for name in CASES if name != "ProxyNCA"])  # which refuses it
def test_one_class(case: str) -> None:
    """No other class, nothing to be told from: what remains has no more than one's own similarity in it."""
    value, *gradients = CASES[case].values(BATCHES["one class"], 1)
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
    if case.startswith(("NormSoftmax", "CosFace", "ArcFace", "ProxyNCA++", "cross-entropy", "cluster")):
        assert value == 0
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("case", CASES)
def test_a_broken_center_breaks_the_loss(case: str) -> None:
    loss = CASES[case].loss(4, 5).double()
    with torch.no_grad():
        loss.centers[-1, 2] = torch.nan
    assert loss(*SHUFFLED).isnan()


# Twice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_gradients_accumulate_over_calls(case: str) -> None:
    """Of two batches, and scaled: each gradient belongs to whoever got it, and a later one does not change it."""
    loss = CASES[case].loss(6, 5).double().eval()
    batches = [SHUFFLED, BATCHES["opposites"]]
    expected = [value_and_gradients(loss, batch, list(loss.parameters())) for batch in batches]
    leaves = [batch.embeddings.clone().requires_grad_() for batch in batches]
    for factor, x, batch in zip((1.0, 0.25), leaves, batches, strict=True):
        (factor * loss(x, batch.labels)).backward()
    torch.testing.assert_close([x.grad for x in leaves], [expected[0][1], 0.25 * expected[1][1]], **CLOSE)
    for parameter, a, b in zip(
        (p for p in loss.parameters() if p.requires_grad), expected[0][2:], expected[1][2:], strict=True
    ):
        torch.testing.assert_close(parameter.grad, a + 0.25 * b, **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_a_second_pass_over_the_same_graph(case: str) -> None:
    """Also under autocast, which changes no number; SoftTriple's regulariser alone is left to torch."""
    loss = CASES[case].loss(6, 5, **({"regularizer": 0.0} if case.startswith("SoftTriple") else {})).eval()
    x = SHUFFLED.embeddings.float().requires_grad_()
    inputs = [x, *(p for p in loss.parameters() if p.requires_grad)]
    value = loss(x, SHUFFLED.labels)
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        second = torch.autograd.grad(value, inputs, torch.tensor(2.0), retain_graph=True)
    torch.testing.assert_close(list(first), kept, rtol=0, atol=0)
    torch.testing.assert_close(list(second), [2 * gradient for gradient in kept], rtol=1e-5, atol=1e-6)
    (3 * value).backward()
    torch.testing.assert_close([leaf.grad for leaf in inputs], [3 * g for g in kept], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [name for name in LEARNED if name != "CCL, stopped"])  # which copies what it needs
def test_what_changed_since_is_noticed(case: str) -> None:
    x = SHUFFLED.embeddings.clone().requires_grad_()
    loss = CASES[case].loss(6, 5).double()
    value = loss(x, SHUFFLED.labels)
    with torch.no_grad():
        loss.centers.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()
