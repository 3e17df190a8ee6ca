"""In tiles a loss is the same as in one piece, and its memory grows with the tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses.batches import LOOSE_DISTANCES, nasty_batches
from tests.losses.cases import CASES, DEFAULTS, MINERS, TURNS, in_turn
from vicinal.losses import ContrastiveLoss, MarginLoss

BATCHES = nasty_batches()


@TURNS
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_those_of_the_whole(case: str, turns: int) -> None:
    for name, batch in in_turn(BATCHES, case, turns).items():
        if len(batch.labels) > 12 and case not in DEFAULTS:
            continue
        loose = CASES[case].kind is MarginLoss and name in LOOSE_DISTANCES
        whole = CASES[case].values(batch)
        for tile_rows in (1, 2, 5) if case in DEFAULTS else (2,):
            tiled = CASES[case].values(batch, tile_rows=tile_rows)
            torch.testing.assert_close(
                tiled, whole, rtol=1e-12, atol=1e-6 if loose else 1e-14, msg=lambda text, name=name: f"{name}: {text}"
            )


TILE, N = 16, 512


def many() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), torch.arange(N) // 4


@pytest.mark.parametrize("case", DEFAULTS)
def test_no_tensor_is_larger_than_a_tile(case: str) -> None:
    x, labels = many()
    labels = labels % 12 if "num_classes" in DEFAULTS[case].arguments else labels
    loss = DEFAULTS[case].loss(tile_rows=TILE)
    with _Largest() as seen:
        loss(x, labels).backward()
    assert 0 < seen.largest <= TILE * N


@pytest.mark.parametrize("miner", MINERS)
def test_no_tensor_of_a_miner_is_larger_than_a_tile(miner: str) -> None:
    x, labels = many()
    with _Largest() as seen:
        ContrastiveLoss(miner=MINERS[miner][0], tile_rows=TILE)(x, labels).backward()
    assert 0 < seen.largest <= TILE * N


def test_no_tensor_is_larger_than_a_tile_with_a_relation() -> None:
    x, labels = many()
    with _Largest() as seen:
        ContrastiveLoss(tile_rows=TILE)(x, labels, relation=lambda a, b: a[:, None] == b).backward()
    assert 0 < seen.largest <= TILE * N


class _Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result
