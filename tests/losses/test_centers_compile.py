"""Losses of class centers compile as one graph, with the value and gradients of the uncompiled one."""

from __future__ import annotations

import pytest
import torch

from tests.losses.center_cases import BATCHES, CASES, DEFAULTS
from tests.losses.gradients import value_and_gradients

CASES_AND_BATCHES = [
    *((case, "singletons") for case in (*DEFAULTS, "CCL, stopped", "SoftTriple, 2", "cross-entropy, smoothed")),
    *((case, "one class") for case in ("NormSoftmax", "CCL", "ProxyAnchor")),
]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "batch"), CASES_AND_BATCHES)
def test_compiles_whole(case: str, batch: str) -> None:
    classes, suited = {"singletons": 7, "one class": 1}[batch], BATCHES[batch].to(torch.float32)
    loss, plain = (CASES[case].loss(classes, 5) for _ in range(2))
    got = value_and_gradients(torch.compile(loss, fullgraph=True), suited, list(loss.parameters()))
    expected = value_and_gradients(plain, suited, list(plain.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss.centers, plain.centers, rtol=1e-5, atol=1e-6)  # cluster contrast moves them
