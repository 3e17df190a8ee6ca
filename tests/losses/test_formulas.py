"""Every loss is its paper's formula: value and gradients against slow references in float64, on every nasty batch."""

from functools import partial

import pytest
import torch

from tests.losses.batches import LOOSE_DISTANCES, nasty_batches, realistic_batch
from tests.losses.cases import CASES, DEFAULTS, PATHS, TURNS, in_turn
from tests.losses.gradients import assert_near
from vicinal.losses import MarginLoss

BATCHES = nasty_batches()


@TURNS
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_the_formulas(case: str, turns: int) -> None:
    """On every batch, whole and in tiles; many classes are left to the losses with their default arguments."""
    for name, batch in in_turn(BATCHES, case, turns).items():
        if name == "many classes" and case not in DEFAULTS:
            continue
        loose = 1e-6 if CASES[case].kind is MarginLoss and name in LOOSE_DISTANCES else 0.0
        close = partial(torch.testing.assert_close, msg=lambda text, name=name: f"{name}: {text}")
        got = CASES[case].values(batch)
        close(got, CASES[case].values_by_hand(batch), rtol=1e-9, atol=loose or 1e-12)
        for tile_rows in (2, 5) if case in DEFAULTS else (2,):  # the last tile of some batches is one row
            close(CASES[case].values(batch, tile_rows=tile_rows), got, rtol=1e-12, atol=loose or 1e-14)


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
