"""All benchmarks can be had by name, and whoever misspells one is told which there are."""

from __future__ import annotations

import pytest

from vicinal.data import benchmarks, load_table
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.utils.errors import InputError

OTHERS = {"BENCHMARKS", "GroundTruth", "revisited_ground_truth"}


def test_every_function_of_the_package_is_named() -> None:
    assert set(BENCHMARKS) == set(benchmarks.__all__) - OTHERS


def test_an_unknown_name_is_answered_with_all() -> None:
    with pytest.raises(InputError, match=r"birds: no such folder, file or benchmark; the benchmarks are") as caught:
        load_table("birds")
    assert all(name in str(caught.value) for name in BENCHMARKS)
