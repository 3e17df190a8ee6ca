"""The mean over two processes, each with half of the batch, is the loss of the whole batch; so are the gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.losses.batches import LOOSE_DISTANCES, Batch, nasty_batches
from tests.losses.cases import CASES
from tests.losses.gradients import value_and_gradients
from tests.processes import run_groups
from vicinal.losses import MarginLoss
from vicinal.similarity.pair_source import PairSource

BATCHES = {name: nasty_batches()[name] for name in ("shuffled", "singletons", "duplicates", "two of two classes")}


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    halves = run_groups(_process, (2,), tmp_path)[2]
    for case in CASES:
        for name, batch in BATCHES.items():
            (first, *gradients), (second, *others) = (half[case, name] for half in halves)
            grad_embeddings = torch.cat([gradients[0], others[0]])
            by_parameters = [a + b for a, b in zip(gradients[1:], others[1:], strict=True)]
            together = [tensor / 2 for tensor in (first + second, grad_embeddings, *by_parameters)]
            atol = 1e-6 if CASES[case].kind is MarginLoss and name in LOOSE_DISTANCES else 1e-12
            message = f"{case}, {name}: "
            torch.testing.assert_close(
                together, CASES[case].values(batch), rtol=1e-9, atol=atol, msg=lambda text, m=message: m + text
            )


def _process(rank: int, _: int) -> dict[tuple[str, str], Any]:
    results = {}
    for case in CASES:
        for name, batch in BATCHES.items():
            labels = CASES[case].suited(batch).labels
            half = len(labels) // 2
            mine = slice(rank * half, (rank + 1) * half)
            loss = CASES[case].loss().double()

            def of_mine(x: torch.Tensor, labels: torch.Tensor, loss=loss) -> torch.Tensor:
                return sum(loss.parts(PairSource.from_distributed_batch(x, labels)).values())

            results[case, name] = value_and_gradients(
                of_mine, Batch(batch.embeddings[mine], labels[mine]), list(loss.parameters())
            )
    return results
