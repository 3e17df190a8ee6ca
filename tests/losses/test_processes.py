"""The mean over two processes, each with half of the batch, is the loss of the whole batch; so are the gradients."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.losses import cases, center_cases
from tests.losses.batches import LOOSE_DISTANCES, Batch, nasty_batches
from tests.losses.contextual_reference import VARIANTS
from tests.losses.gradients import value_and_gradients
from tests.losses.test_contextual import SAMPLES
from tests.processes import run_groups
from vicinal.losses import (
    ContextualLoss,
    ContrastiveLoss,
    CosFaceLoss,
    Loss,
    MultiSimilarityLoss,
    SimilarityRegularizer,
)
from vicinal.matryoshka import Matryoshka
from vicinal.memory import CrossBatchMemory
from vicinal.similarity.pair_source import PairSource

BATCHES = nasty_batches()
OF_PAIRS = ("shuffled", "singletons", "duplicates", "two of two classes")
OF_CENTERS = {"shuffled": 7, "singletons": 5, "many classes": 13}
OF_NEIGHBORHOODS = ("16, k = 4", "two classes", "duplicates", "collapsed", "rather near each other")
NEIGHBORHOODS: dict[str, Callable[[], Loss]] = {
    "contextual": ContextualLoss,
    **{name: partial(ContextualLoss, 3, **options) for name, options in VARIANTS.items() if options},
    "regulariser": SimilarityRegularizer,
    "Eq. (6)": lambda: 0.8 * ContextualLoss() + 0.2 * ContrastiveLoss(0.75, 0.6) + 0.1 * SimilarityRegularizer(0.3),
    "memory": lambda: CrossBatchMemory(ContextualLoss(4), 40),
}


def _with_prefixes(kind: Callable[[], Loss]) -> Loss:
    torch.manual_seed(0)
    return Matryoshka(kind(), [2, 5])


TABLE: dict[str, tuple[Callable[[], Loss], Batch]] = {
    **{
        f"{name}, {batch}": (case.loss, case.suited(BATCHES[batch]))
        for name, case in cases.CASES.items()
        for batch in OF_PAIRS
    },
    **{
        f"{name}, {batch}": (partial(case.loss, classes, center_cases.BATCHES[batch].embeddings.shape[1]),
                             center_cases.BATCHES[batch])
        for name, case in center_cases.CASES.items()
        for batch, classes in OF_CENTERS.items()
    },
    **{
        f"contextual, {name}, {batch}": (make, Batch(*SAMPLES[batch][:2]))
        for name, make in NEIGHBORHOODS.items()
        for batch in OF_NEIGHBORHOODS
    },
    **{
        f"Matryoshka, {number}, {batch}": (partial(_with_prefixes, kind), BATCHES[batch])
        for number, kind in enumerate((MultiSimilarityLoss, partial(CosFaceLoss, 12, 5)))
        for batch in ("shuffled", "zero vector")
    },
}  # fmt: skip
"""Losses and batches that two processes divide."""


def found(name: str, mine: slice = slice(None)) -> tuple[list[Tensor], dict[str, Any]]:
    """Value and gradients of a process, and the state of the loss after the call."""
    make, batch = TABLE[name]
    loss = make().double()

    def of_mine(x: Tensor, labels: Tensor) -> Tensor:
        return sum(loss.parts(PairSource.from_distributed_batch(x, labels)).values())

    part = Batch(batch.embeddings[mine], batch.labels[mine])
    return value_and_gradients(of_mine, part, list(loss.parameters())), dict(loss.state_dict())


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    halves = run_groups(_process, (2,), tmp_path)[2]
    for name in TABLE:
        ((value, by_x, *others), state), ((value_2, by_x_2, *others_2), state_2) = (half[name] for half in halves)
        by_parameters = [a + b for a, b in zip(others, others_2, strict=True)]
        got = [tensor / 2 for tensor in (value + value_2, torch.cat([by_x, by_x_2]), *by_parameters)]
        expected, expected_state = found(name)
        if name.startswith("contextual"):
            assert all((a - b).norm() <= 1e-9 * b.norm() + 1e-14 for a, b in zip(got, expected, strict=True)), name
            continue
        atol = 1e-6 if name.startswith(("margin", "MarginLoss")) and name.endswith(LOOSE_DISTANCES) else 1e-12
        atol = 1e-10 if name.startswith("Matryoshka") else atol
        for tensors, wanted in ((got, expected), (state, expected_state), (state_2, expected_state)):
            torch.testing.assert_close(tensors, wanted, rtol=1e-9, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def _process(rank: int, _: int) -> dict[str, Any]:
    results = {}
    for name, (_, batch) in TABLE.items():
        half = len(batch.labels) // 2
        results[name] = found(name, slice(rank * half, (rank + 1) * half))
    return results
