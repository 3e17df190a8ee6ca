"""Every loss compiles as one graph, with the value and gradients of the uncompiled one."""

from __future__ import annotations

import pytest
import torch

from tests.losses.batches import nasty_batches
from tests.losses.cases import DEFAULTS
from tests.losses.gradients import value_and_gradients
from vicinal.losses import ContextualLoss, ContrastiveLoss, RoadmapLoss

BATCHES = nasty_batches()

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "batch"),
    [*((case, "singletons") for case in DEFAULTS), ("NT-Xent", "references lack a class"), ("margin", "duplicates")],
)
def test_compiles_whole(case: str, batch: str) -> None:
    suited = DEFAULTS[case].suited(BATCHES[batch]).to(torch.float32)
    loss = DEFAULTS[case].loss()
    compiled = torch.compile(loss, fullgraph=True)
    got = value_and_gradients(compiled, suited, list(loss.parameters()))
    for buffer in loss.buffers():  # the number of the call, which random miners draw from
        buffer.zero_()
    expected = value_and_gradients(loss, suited, list(loss.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3 if batch == "duplicates" else 1e-6)


@pytest.mark.slow
def test_a_sum_of_losses_compiles_whole() -> None:
    batch, loss = BATCHES["singletons"].to(torch.float32), RoadmapLoss()
    got = value_and_gradients(torch.compile(loss, fullgraph=True), batch)
    torch.testing.assert_close(got, value_and_gradients(loss, batch), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"conjunction": "min"}, marks=pytest.mark.slow),
        pytest.param({"theta": "sigmoid", "correct_gradient": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_contextual_loss_compiles_whole_where_k_is_given(options: dict[str, object]) -> None:
    batch, loss = BATCHES["shuffled"], 0.8 * ContextualLoss(k=3, **options) + 0.2 * ContrastiveLoss()  # type: ignore[arg-type]
    got = value_and_gradients(torch.compile(loss, fullgraph=True, backend="aot_eager"), batch)
    torch.testing.assert_close(got, value_and_gradients(loss, batch), rtol=1e-10, atol=1e-12)
