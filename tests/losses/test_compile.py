"""Every loss compiles as one graph, with the value and gradients of the uncompiled one."""

import pytest
import torch

from tests.losses import cases, center_cases
from tests.losses.every_loss import BATCHES, PATHS
from tests.losses.gradients import value_and_gradients
from vicinal.losses import ContextualLoss, ContrastiveLoss

WHOLE = [
    *((name, "singletons") for name in (*cases.DEFAULTS, *center_cases.DEFAULTS)),
    *((name, "singletons") for name in ("CCL, stopped", "SoftTriple, 2", "cross-entropy, smoothed", "ROADMAP")),
    *((name, "one class") for name in ("NormSoftmax", "CCL", "ProxyAnchor")),
    ("NT-Xent", "references lack a class"),
    ("margin", "duplicates"),
]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), WHOLE)
def test_compiles_whole(name: str, batch: str) -> None:
    suited = BATCHES[batch].to(torch.float32)
    classes = 1 if batch == "one class" else 7
    loss, plain = (PATHS[name](classes, suited.embeddings.shape[1]) for _ in range(2))
    got = value_and_gradients(torch.compile(loss, fullgraph=True), suited, list(loss.parameters()))
    expected = value_and_gradients(plain, suited, list(plain.parameters()))
    atol = 1e-5 if name in center_cases.CASES else 1e-3 if batch == "duplicates" else 1e-6
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=atol)
    for key, tensor in plain.state_dict().items():  # cluster contrast moves its centers
        torch.testing.assert_close(loss.state_dict()[key], tensor, rtol=1e-5, atol=1e-6)


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
