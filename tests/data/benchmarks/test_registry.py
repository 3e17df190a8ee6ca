"""All benchmarks can be had by name, and whoever misspells one is told which there are."""

from __future__ import annotations

from vicinal.data import benchmarks
from vicinal.data.benchmarks import BENCHMARKS

OTHERS = {"BENCHMARKS", "GroundTruth", "revisited_ground_truth"}


def test_every_function_of_the_package_is_named() -> None:
    assert set(BENCHMARKS) == set(benchmarks.__all__) - OTHERS
