"""The Triton kernels against PyTorch operations, in Triton's interpreter."""

import math

import pytest
import torch
from torch import Tensor

from tests.losses.batches import nasty_batches
from tests.losses.gradients import value_and_gradients
from vicinal.losses import RecallAtKLoss, SupAPLoss, TripletLoss, soft_ranks, triplets
from vicinal.mixing import SiMix
from vicinal.utils import devices

rank_kernels = pytest.importorskip(
    "vicinal.losses.rank_kernels", reason="needs Triton, which some builds of torch lack"
)

LOSSES = {
    "RS@k": lambda: RecallAtKLoss(tile_rows=3),
    "RS@k, SiMix": lambda: SiMix(RecallAtKLoss()),
    "SupAP": lambda: SupAPLoss(),
    "triplets": lambda: TripletLoss(),
    "triplets, soft": lambda: TripletLoss(soft=True, margin=0.0),
    "triplets, semi-hard": lambda: TripletLoss(triplets="semi-hard", reduction="violating"),
}
STEPS = {"exact": (0.0, math.inf, 0.0), "sigmoid": (0.05, math.inf, 0.0), "upper bound": (0.05, 0.1, 20.0)}


BATCHES = {name: batch.to(torch.float32) for name, batch in nasty_batches().items()}
FEW = ("shuffled", "duplicates", "one class", "references around the batch")  # as interpreted kernels are slow


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses take the kernels for tensors of the CPU."""
    for module in (soft_ranks, triplets):
        monkeypatch.setattr(module, "uses_kernel", lambda *_: True)


def ragged(rows: int, columns: int, padding: float, seed: int) -> Tensor:
    """Similarities, some equal, with padding: one row is empty, one is full."""
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(rows, columns, generator=generator) * 40).round() / 20 - 1
    number = torch.randint(columns + 1, (rows, 1), generator=generator)
    number[0], number[1] = 0, columns
    order = torch.rand(rows, columns, generator=generator).argsort(dim=1)
    return values.masked_fill(order >= number, padding)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("p", "q"), [(1, 1), (3, 20), (11, 70)])
def test_counts_and_gradients_are_those_of_pytorch(step: str, p: int, q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "MAX_POSITIVES", 4)  # so that there are several parts of few positives,
    monkeypatch.setattr(devices, "MAX_PAIRS", 128)  # and several blocks of similarities
    thresholds, values = ragged(5, p, math.inf, 0), ragged(5, q, -math.inf, 1)
    upstream = torch.randn(5, p, generator=torch.Generator().manual_seed(2))
    for name, arguments in (
        ("count_above", (thresholds, values, *STEPS[step])),
        ("count_above_backward", (upstream, thresholds, values, *STEPS[step])),
    ):
        expected = getattr(soft_ranks, f"_{name}")._init_fn(*arguments)
        torch.testing.assert_close(getattr(rank_kernels, name)(*arguments), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "names"),
    [*((name, FEW) for name in LOSSES), pytest.param("triplets", tuple(BATCHES), marks=pytest.mark.slow)],
)
def test_losses_with_kernels_are_those_without(
    name: str, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    batches = {each: BATCHES[each] for each in names}
    expected = {each: value_and_gradients(LOSSES[name](), batch) for each, batch in batches.items()}
    request.getfixturevalue("with_kernels")
    for each, batch in batches.items():
        got = value_and_gradients(LOSSES[name](), batch)
        torch.testing.assert_close(
            got, expected[each], rtol=1e-5, atol=1e-6, msg=lambda text, each=each: f"{each}: {text}"
        )
